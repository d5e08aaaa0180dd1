"""The page: the answers of the command line over HTTP, and one static page that asks for them."""
