import asyncio
import io
import json
import threading

from coseek.serve.logs import Log


def lines(file: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.getvalue().splitlines()]


def test_every_line_is_one_json_object_whatever_it_holds() -> None:
    file = io.StringIO()

    async def write() -> None:
        log = Log(file)
        log.start()
        log.add({"path": "a\nb\u2028c"})
        log.add({"path": "d"})
        log.close()

    asyncio.run(write())
    assert lines(file) == [{"path": "a\nb\u2028c"}, {"path": "d"}]


def test_a_reader_that_stalls_costs_lines_and_holds_nobody_up() -> None:
    may_write = threading.Event()

    class Stalled(io.StringIO):
        def write(self, text: str) -> int:
            assert may_write.wait(10)
            return super().write(text)

    file = Stalled()

    async def write() -> None:
        log = Log(file)
        log.start()
        for number in range(1_000):
            log.add({"line": number})
            log.hand_over()
        may_write.set()
        while log.waiting_blocks:
            await asyncio.sleep(0.001)
        log.add({"line": "last"})
        log.close()

    asyncio.run(write())
    written = lines(file)
    dropped = sum(int(str(line["dropped_log_lines"])) for line in written if "dropped_log_lines" in line)
    assert dropped >= 390
    assert len([line for line in written if "line" in line]) + dropped == 1_001
    assert written[-1] == {"line": "last"}
