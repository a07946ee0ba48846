"""Both halves of tests/power_cuts/run:

    cuts.py write DIR PORT SECONDS SEED        writes to a server whose disk is logged in DIR/log, and notes what was acknowledged when
    cuts.py cut DIR PUMICE CUTS SEED [AT]      cuts power at so many places of that log, or at one, and looks at what is left

The log is that of QEMU's blklogwrites, which is that of Linux's dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst).
"""

import hashlib
import os
import pickle
import random
import socket
import struct
import subprocess
import sys
import threading
import time

CLIENTS = 10
KEYS = 40
VALUE_BYTES_MAX = 100_000
DELETED, PUSHED, PAIRED = -1, -2, -3
MAGIC = 0x6A736677736872
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
SECTOR = 512


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rb")

    def send(self, *commands):
        parts = []
        for command in commands:
            parts.append(b"*%d\r\n" % len(command))
            parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in command]
        self.socket.sendall(b"".join(parts))

    def reply(self):
        line = self.file.readline()
        if not line:
            raise EOFError("the server closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        return rest

    def ask(self, *command):
        self.send(command)
        return self.reply()


def connected(port, seconds, is_alive=lambda: True):
    """A connection to a server that is about to serve."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and is_alive():
        try:
            connection = Connection(port)
            connection.ask(b"EXISTS", b"nothing")
            return connection
        except (OSError, EOFError, RuntimeError):  # not yet, or LOADING
            time.sleep(0.1)
    return None


def value(key, version, size):
    block = hashlib.sha256(f"{key}/{version}".encode()).digest()
    return (b"%d:" % version + block * (size // len(block) + 1))[: max(size, 12)]


class Write:
    """One write of one key; `acked` tells how many entries the log had when it was acknowledged, None if it was not."""

    def __init__(self, version, size):
        self.version, self.size, self.acked = version, size, None


def draw(client, version, rng):
    """A command, the keys that it writes, and what of each."""
    kind = rng.random()
    if kind < 0.1:
        key = f"list{client}"
        return [b"RPUSH", key.encode(), b"%d" % version], [key], PUSHED
    if kind < 0.2:
        pair = [f"left{client}", f"right{client}"]
        words = [word for key in pair for word in (key.encode(), b"%d" % version)]
        return [b"MSET", *words], pair, PAIRED
    key = f"key{client}:{rng.randrange(KEYS)}"
    if kind < 0.3:
        return [b"DEL", key.encode()], [key], DELETED
    size = int(VALUE_BYTES_MAX ** rng.random())
    return [b"SET", key.encode(), value(key, version, size)], [key], size


def write(directory, port, seconds, seed):
    if connected(port, 120) is None:
        print("no server came up")
        return 1
    log = os.open(f"{directory}/log", os.O_RDONLY)
    entries = lambda: struct.unpack("<Q", os.pread(log, 8, 16))[0]
    # One after the other: QEMU listens with a queue for one, and who comes beside others may be reset.
    connections = [connected(port, 60) for _ in range(CLIENTS)]
    if None in connections:
        print("no connection")
        return 1
    history, troubles = {}, []
    first = entries()

    def client(number, connection):
        rng = random.Random(seed * 1000 + number)
        try:
            until, version = time.monotonic() + seconds, 0
            while time.monotonic() < until:
                commands, sent = [], []
                for _ in range(rng.choice([1, 1, 4, 16])):
                    version += 1
                    command, keys, size = draw(number, version, rng)
                    commands.append(command)
                    sent.append([Write(version, size) for _ in keys])
                    for key, one in zip(keys, sent[-1]):
                        history.setdefault(key, []).append(one)
                connection.send(*commands)
                for writes in sent:
                    connection.reply()
                    for one in writes:
                        one.acked = entries()
        except Exception as trouble:
            troubles.append(f"client {number}: {trouble!r}")

    threads = [threading.Thread(target=client, args=each) for each in enumerate(connections)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    count = sum(len(writes) for writes in history.values())
    print(f"{count} writes acknowledged, {entries()} writes and flushes of the disk, {first} of them before")
    with open(f"{directory}/history", "wb") as file:
        pickle.dump(history, file)
    print("\n".join(troubles[:5]), end="\n" if troubles else "")
    return 1 if troubles or count < 100 else 0


class Disk:
    """The disk as its log has it, entry by entry: what is on its media, and what is in its cache."""

    def __init__(self, directory):
        self.directory = directory
        self.log = open(f"{directory}/log", "rb")
        magic, _, count, sector = struct.unpack("<QQQI", self.log.read(28))
        assert (magic, sector) == (MAGIC, SECTOR), "not such a log"
        self.entries, at = [], SECTOR
        for _ in range(count):
            self.log.seek(at)
            first, sectors, flags, _ = struct.unpack("<QQQQ", self.log.read(32))
            at += SECTOR
            self.entries.append((first * SECTOR, sectors * SECTOR, flags, at))
            at += 0 if flags & DISCARD else sectors * SECTOR
        subprocess.run(["cp", f"{directory}/before.img", f"{directory}/media.img"], check=True)
        self.media = os.open(f"{directory}/media.img", os.O_RDWR)
        self.cache, self.next = [], 0

    def run_to(self, at):
        while self.next < at:
            entry = self.entries[self.next]
            self.next += 1
            if entry[2] & FLUSH:
                [self.put(self.media, written) for written in self.cache]
                self.cache = []
            if entry[1] and not entry[2] & MARK:
                if entry[2] & FUA:
                    self.put(self.media, entry)
                else:
                    self.cache.append(entry)

    def put(self, file, entry, begin=0, end=None):
        offset, length, flags, at = entry
        end = length if end is None else end
        self.log.seek(at + begin)
        data = bytes(end - begin) if flags & DISCARD else self.log.read(end - begin)
        os.pwrite(file, data, offset + begin)

    def cut(self, rng):
        """What is left when power goes now: a copy of the media, with what of the cache had got there; how that was drawn."""
        path = f"{self.directory}/cut.img"
        subprocess.run(["cp", f"{self.directory}/media.img", path], check=True)
        how = rng.choice(["nothing", "all", "some", "parts"])
        file = os.open(path, os.O_RDWR)
        for entry in self.cache:
            if how == "all" or how in ("some", "parts") and rng.random() < 0.5:
                begin, end = 0, entry[1]
                if how == "parts" and rng.random() < 0.7:
                    begin, end = sorted(rng.randrange(0, end + 1, SECTOR) for _ in range(2))
                self.put(file, entry, begin, end)
        os.close(file)
        return path, f"{how} of {len(self.cache)} writes in the cache"


def drive_in(image, path):
    """Replays the file system's journal, and takes the drive out of it; False where it was not there yet."""
    fsck = subprocess.run(["e2fsck", "-fy", image], capture_output=True, text=True)
    if fsck.returncode > 1:
        raise RuntimeError(f"the file system: {fsck.stdout[-500:]}")
    if os.path.exists(path):
        os.remove(path)
    subprocess.run(["debugfs", "-R", f"dump /drive0 {path}", image], capture_output=True, check=True)
    return os.path.exists(path) and os.path.getsize(path) > 0


def faults(connection, history, at):
    """What is not as the clients were told."""
    found = []
    for key, writes in history.items():
        acked = [index for index, one in enumerate(writes) if one.acked is not None and one.acked <= at]
        newest = acked[-1] if acked else -1
        if writes[0].size == PUSHED:
            got = connection.ask(b"LRANGE", key.encode(), b"0", b"-1")
            if got != [b"%d" % one.version for one in writes[: len(got)]] or len(got) <= newest:
                found.append(f"{key} has {len(got)} elements, {newest + 1} were acknowledged")
            continue
        got = connection.ask(b"GET", key.encode())

        def holds(one):
            if one.size == DELETED:
                return got is None
            return got == (b"%d" % one.version if one.size == PAIRED else value(key, one.version, one.size))

        if not any(holds(one) for one in writes[max(newest, 0) :]) and not (newest < 0 and got is None):
            told = writes[newest].version if newest >= 0 else "nothing"
            found.append(f"{key} is {got and got[:12]!r}, version {told} was acknowledged")
    for client in range(CLIENTS):
        left, right = connection.ask(b"MGET", b"left%d" % client, b"right%d" % client)
        if left != right:
            found.append(f"an MSET is there in part: {left} and {right}")
    return found


def look(directory, pumice, disk, history, at, rng):
    """Cuts power behind so many entries; what is wrong, and what was done."""
    disk.run_to(at)
    image, how = disk.cut(rng)
    drive = f"{directory}/drive0"
    due = sum(one.acked is not None and one.acked <= at for writes in history.values() for one in writes)
    if not drive_in(image, drive):
        return ([f"there is no drive, and {due} writes were acknowledged"] if due else []), how
    port = socket.socket()
    port.bind(("127.0.0.1", 0))
    number = port.getsockname()[1]
    port.close()
    arguments = ["serve", "--device", drive, "--redis", f"127.0.0.1:{number}", "--memory", "256MiB"]
    with open(f"{directory}/server", "w") as said:
        server = subprocess.Popen([pumice, *arguments], stdout=said, stderr=subprocess.STDOUT, cwd=directory)
    try:
        connection = connected(number, 60, lambda: server.poll() is None)
        if connection is None:
            with open(f"{directory}/server") as said:
                return ([f"it is not served: {said.read()[-600:]}"] if due else []), how
        found = faults(connection, history, at)
        try:
            connection.ask(b"SHUTDOWN")
        except (EOFError, OSError):
            pass
        server.wait(30)
    finally:
        server.kill()
        server.wait()
    check = subprocess.run([pumice, "check", drive], capture_output=True, text=True)
    if check.returncode:
        found.append(f"check: {(check.stdout + check.stderr)[-600:]}")
    return found, f"{how}, {due} writes acknowledged"


def cut(directory, pumice, cuts, seed, only=None):
    with open(f"{directory}/history", "rb") as file:
        history = pickle.load(file)
    disk = Disk(directory)
    count = len(disk.entries)
    # Some where the drive is made, the others anywhere.
    rng = random.Random(seed)
    early = rng.sample(range(1, min(400, count)), min(cuts // 6, 399))
    places = sorted(set(early + rng.sample(range(1, count + 1), min(cuts - len(early), count))))
    failed = 0
    for at in [only] if only else places:
        found, how = look(directory, pumice, disk, history, at, random.Random(seed * 1_000_003 + at))
        print(f"power cut behind entry {at} of {count}: {how}{': LOST' if found else ''}")
        if found:
            failed += 1
            print("".join(f"  {what}\n" for what in found[:10]), end="")
            print(f"  again: python3 {sys.argv[0]} cut {directory} {pumice} {cuts} {seed} {at}")
    done = 1 if only else len(places)
    print(f"power cuts: {done - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    what, directory = sys.argv[1:3]
    if what == "write":
        sys.exit(write(directory, int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])))
    sys.exit(cut(directory, sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), *map(int, sys.argv[6:7])))
