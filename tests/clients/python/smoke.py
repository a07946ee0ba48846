"""redis-py against a running server: what an application does with it, over RESP2 and RESP3."""

import sys
import threading
import time

import redis


# The longest that a check waits: a machine that does much else is waited for, a hang is not.
PATIENCE_S = 120


def check_strings(r):
    assert r.set("k", b"\x00\xff binary \r\n") and r.get("k") == b"\x00\xff binary \r\n"
    assert r.set("k", "v", nx=True) is None and r.set("k", "w", xx=True, get=True) == b"\x00\xff binary \r\n"
    assert r.append("k", "orld") == 5 and r.getrange("k", 0, 2) == b"wor" and r.setrange("k", 6, "!") == 7
    assert r.incr("n") == 1 and r.incrby("n", 41) == 42 and r.decr("n") == 41 and r.incrbyfloat("n", 0.5) == 41.5
    assert r.mset({"a": 1, "b": 2}) and r.mget("a", "b", "none") == [b"1", b"2", None]
    assert r.delete("a", "b", "none") == 2 and r.exists("k", "k") == 2 and r.strlen("k") == 7


def check_expiry(r):
    r.set("e", 1, px=1_000_000)
    assert 0 < r.pttl("e") <= 1_000_000 and r.ttl("none") == -2
    r.set("e", 1, px=50)
    for _ in range(PATIENCE_S * 100):
        if r.get("e") is None:
            break
        time.sleep(0.01)
    assert r.get("e") is None and r.exists("e") == 0
    r.set("e", 1, ex=1000)
    assert r.persist("e") and r.ttl("e") == -1 and r.expire("e", 500) and 0 < r.ttl("e") <= 500


def check_hashes(r):
    assert r.hset("h", mapping={"a": 1, "b": "x" * 5000}) == 2 and r.hget("h", "a") == b"1"
    assert r.hgetall("h") == {b"a": b"1", b"b": b"x" * 5000} and r.hincrby("h", "a", 4) == 5
    assert r.hlen("h") == 2 and r.hdel("h", "a", "z") == 1 and dict(r.hscan_iter("h")) == {b"b": b"x" * 5000}
    assert r.type("h") == b"hash"


def check_sets(r):
    r.sadd("s", *range(500))
    r.sadd("t", *range(400, 600))
    assert r.scard("s") == 500 and len(r.smembers("s")) == 500 and r.sismember("s", 7)
    assert len(r.sinter("s", "t")) == 100 and len(r.sunion("s", "t")) == 600 and len(r.sdiff("s", "t")) == 400
    assert len(set(r.sscan_iter("s"))) == 500 and r.spop("s") is not None and r.scard("s") == 499


def check_sorted_sets(r):
    r.zadd("z", {f"m{i}": i / 2 for i in range(200)})
    assert r.zcard("z") == 200 and r.zscore("z", "m3") == 1.5 and r.zrank("z", "m10") == 10
    assert r.zrange("z", 0, 1, withscores=True) in ([(b"m0", 0.0), (b"m1", 0.5)], [[b"m0", 0.0], [b"m1", 0.5]])
    assert r.zrangebyscore("z", "(1", 2) == [b"m3", b"m4"] and r.zincrby("z", 100, "m0") == 100.0
    assert r.zrevrange("z", 0, 0) == [b"m0"] and r.zremrangebyscore("z", "-inf", 10) == 20


def check_lists(r):
    assert r.rpush("l", *range(100)) == 100 and r.lpush("l", "x") == 101
    assert r.lrange("l", 0, 2) == [b"x", b"0", b"1"] and r.lindex("l", -1) == b"99"
    assert r.lpop("l") == b"x" and r.rpop("l") == b"99" and r.linsert("l", "before", 50, "mid") == 100
    assert r.ltrim("l", 0, 9) and r.llen("l") == 10 and r.lmove("l", "l2") == b"0"


def check_transactions(r):
    with r.pipeline(transaction=True) as p:
        assert p.set("tx", 1).incr("tx").get("tx").execute() == [True, 2, b"2"]
    with r.pipeline() as p:
        p.watch("tx")
        r.set("tx", "touched")
        p.multi()
        p.set("tx", "never")
        try:
            p.execute()
            raise AssertionError("a touched WATCH went through")
        except redis.WatchError:
            pass
    assert r.get("tx") == b"touched"

    def bump():
        for _ in range(50):
            r.transaction(increment, "count")
            r.incr("counter")

    def increment(p):
        count = int(p.get("count") or 0)
        p.multi()
        p.set("count", count + 1)

    threads = [threading.Thread(target=bump) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert r.get("counter") == b"200" and r.get("count") == b"200"


def check_pipelines_and_large_values(r):
    with r.pipeline(transaction=False) as p:
        for i in range(2000):
            p.set(f"p{i}", i)
        assert all(p.execute())
    assert len(list(r.scan_iter("p*", count=500))) >= 2000
    big = bytes(range(256)) * 32768
    assert r.set("big", big) and r.get("big") == big and r.strlen("big") == len(big)
    assert r.getrange("big", 1 << 20, (1 << 20) + 3) == b"\x00\x01\x02\x03"


def check_errors(r):
    r.set("str", "x")
    for call, text in [(lambda: r.lpush("str", 1), "WRONGTYPE"), (lambda: r.incr("str"), "not an integer"),
                       (lambda: r.execute_command("NOPE"), "unknown command"),
                       (lambda: r.execute_command("GET"), "wrong number of arguments")]:
        try:
            call()
            raise AssertionError(f"no error where {text!r} was due")
        except redis.ResponseError as error:
            assert text in str(error) or text == "WRONGTYPE", error


def main():
    host, port = sys.argv[1], int(sys.argv[2])
    checks = [(name[6:].replace("_", " "), check) for name, check in globals().items() if name.startswith("check_")]
    for protocol in (2, 3):
        for name, check in checks:
            r = redis.Redis(host, port, db=9, protocol=protocol, socket_timeout=PATIENCE_S)
            try:
                r.flushdb()
                check(r)
                print(f"ok - redis-py RESP{protocol}: {name}")
            except Exception as error:  # a failed check is a result, and the rest still runs
                print(f"not ok - redis-py RESP{protocol}: {name}: {type(error).__name__}: {error}")
            finally:
                r.close()
    redis.Redis(host, port, db=9).flushdb()
    print("redis-py done")


main()
