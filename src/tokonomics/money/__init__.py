"""What it costs: the cost equation, cost trees and load profiles."""
