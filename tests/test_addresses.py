"""A server with no file left: one line, and it takes connections again."""

import subprocess
import sys

SERVER = """
import asyncio, resource, socket
from tokonomics.measure.meter.exposition import serve_exposition
from tokonomics.measure.meter.live_meter import MeterSettings

async def main():
    async with serve_exposition("127.0.0.1", 0, lambda: None, MeterSettings(7.2)) as address:
        port = int(address.split(":")[2].split("/")[0])
        await asyncio.to_thread(int)  # what a first answer opens is open
        waiting = [socket.socket() for _ in range(40)]
        used = max(one.fileno() for one in waiting)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 4, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        await asyncio.sleep(0.3)
        for one in waiting:
            one.close()
        await asyncio.sleep(1.2)  # asyncio accepts again after a second
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\\r\\n\\r\\n")
        print((await reader.readline()).decode().strip())
        writer.close()

asyncio.run(main())
"""


def test_a_server_without_files_says_so_once_and_answers_again() -> None:
    done = subprocess.run([sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=60)
    assert "200 OK" in done.stdout
    assert done.stderr.splitlines() == [
        "connections wait: Too many open files. Close some, or raise the limit on open files (ulimit -n)."
    ]
