//! Edge cases, one table a type.

use super::with_pair;

fn check(table: &str) {
    with_pair(&["2", "3"], |pair| {
        pair.check("SET text value");
        pair.table(table);
        pair.check_contents();
    });
}

#[test]
fn hashes_answer_as_redis_does() {
    check(
        r#"
        HSET h
        HSET h f
        HSET h f v g
        HMSET h f
        HSET h f v
        HSET h f w g x f y
        HGET h f
        HGET h none
        HGET none f
        HGET text f
        HSET text f v
        HSET h "" ""
        HGET h ""
        HMSET h a 1 b 2
        HMGET h a b none a
        HMGET none a b
        HMGET text a
        HSETNX h a 9
        HSETNX h new 9
        HSETNX text a 9
        HSETNX fresh a 9
        HSTRLEN h f
        HSTRLEN h none
        HSTRLEN none f
        HSTRLEN text f
        HEXISTS h f
        HEXISTS h none
        HEXISTS none f
        HEXISTS text f
        HLEN h
        HLEN none
        HLEN text
        ~HKEYS h
        ~HVALS h
        ~~HGETALL h
        HGETALL none
        HKEYS none
        HVALS none
        HGETALL text
        HDEL h none
        HDEL h f f
        HDEL none f
        HDEL text f
        HDEL h
        HINCRBY h n 5
        HINCRBY h n -7
        HINCRBY h n 9223372036854775807
        HINCRBY h n 9223372036854775807
        HINCRBY h n x
        HINCRBY h n 1.5
        HINCRBY text n 1
        HSET h t x o 01 sp " 1"
        HINCRBY h t 1
        HINCRBY h o 1
        HINCRBY h sp 1
        HINCRBYFLOAT h r 0.1
        HINCRBYFLOAT h r 0.2
        HINCRBYFLOAT h r 1e3
        HINCRBYFLOAT h r -1000.3
        HINCRBYFLOAT h r 3.0e5
        HINCRBYFLOAT h r abc
        HINCRBYFLOAT h r " 1"
        HINCRBYFLOAT h r inf
        HINCRBYFLOAT h r nan
        HINCRBYFLOAT h t 1
        HINCRBYFLOAT text n 1
        HINCRBYFLOAT h big 1e300
        HINCRBYFLOAT h big 1e300
        HINCRBYFLOAT h small 1e-17
        HINCRBYFLOAT h tiny 1e-30
        HINCRBYFLOAT h r 1.1
        HINCRBYFLOAT h third 0.3333333333333333333333
        HINCRBYFLOAT h third 3.3333333333333333333333
        HINCRBYFLOAT h huge 1e4932
        HINCRBYFLOAT h huge 1e4933
        HINCRBYFLOAT h hex 0x1p-3
        HINCRBYFLOAT h neg -0
        HINCRBYFLOAT h neg -0.0
        HDEL fresh a
        EXISTS fresh
        HSET one f v
        HRANDFIELD one
        HRANDFIELD one 5
        HRANDFIELD one 5 WITHVALUES
        HRANDFIELD one -3
        HRANDFIELD one -3 WITHVALUES
        HRANDFIELD one 0
        HRANDFIELD one 0 WITHVALUES
        HRANDFIELD one x
        HRANDFIELD one 1 WITHSCORES
        HRANDFIELD one 1 WITHVALUES x
        HRANDFIELD one -9223372036854775808
        HRANDFIELD one -9223372036854775807 WITHVALUES
        HRANDFIELD one 9223372036854775807 WITHVALUES
        HRANDFIELD none
        HRANDFIELD none 3
        HRANDFIELD none 3 WITHVALUES
        HRANDFIELD text
        ?HRANDFIELD h
        ?HRANDFIELD h 3
        ?HRANDFIELD h -10
        HSCAN one 0
        HSCAN one 0 MATCH x*
        HSCAN one 0 MATCH f* COUNT 1
        HSCAN none 0
        HSCAN none 0 COUNT x
        HSCAN one x
        HSCAN one 0 COUNT 0
        HSCAN one 0 COUNT x
        HSCAN one 0 MATCH
        HSCAN one 0 TYPE hash
        HSCAN one 0 JUNK 1
        HSCAN text 0
        HSCAN one 5
        HSCAN one 18446744073709551616
        HDEL h a b n new o r sp t "" g big small tiny third huge hex neg
        ~~HGETALL h
    "#,
    );
}

#[test]
fn sets_answer_as_redis_does() {
    check(
        r#"
        SADD s a
        SADD s a b c a
        SADD s
        SADD text a
        SREM s none
        SREM s a a
        SREM none a
        SREM text a
        SISMEMBER s b
        SISMEMBER s a
        SISMEMBER none a
        SISMEMBER text a
        SMISMEMBER s a b c b
        SMISMEMBER none a b
        SMISMEMBER text a
        SCARD s
        SCARD none
        SCARD text
        ~SMEMBERS s
        SMEMBERS none
        SMEMBERS text
        SADD i 1 2 3
        ~SMEMBERS i
        SADD e ""
        SMEMBERS e
        SMOVE s t b
        SMOVE s t none
        SMOVE none t b
        SMOVE s s c
        SMOVE s s none
        SMOVE s text c
        SMOVE text s c
        SMOVE none text c
        SMOVE s t c
        EXISTS s
        SADD a 1 2 3 4
        SADD b 3 4 5
        SADD c 4 x
        ~SINTER a b
        ~SINTER a b c
        SINTER a none
        ~SINTER a a
        SINTER none text
        SINTER text none
        SINTER a text
        ~SUNION a b c
        ~SUNION none a
        SUNION none
        SUNION a text
        ~SDIFF a b
        ~SDIFF a b c
        SDIFF none a
        ~SDIFF a none
        SDIFF a a
        SDIFF a text
        SINTERSTORE d a b
        ~SMEMBERS d
        SINTERSTORE d a none
        EXISTS d
        SUNIONSTORE d a b c
        ~SMEMBERS d
        SDIFFSTORE d a b
        ~SMEMBERS d
        SDIFFSTORE d a a
        EXISTS d
        SUNIONSTORE a a b
        ~SMEMBERS a
        SUNIONSTORE text none
        EXISTS text
        SET text value
        SUNIONSTORE text a
        TYPE text
        SET text value
        SINTERSTORE d text a
        SINTERCARD 2 a b
        SINTERCARD 2 a b LIMIT 1
        SINTERCARD 2 a b LIMIT 0
        SINTERCARD 2 a b LIMIT -1
        SINTERCARD 2 a b LIMIT x
        SINTERCARD 2 a b LIMIT
        SINTERCARD 2 a b JUNK 1
        SINTERCARD 0 a b
        SINTERCARD x a b
        SINTERCARD 3 a b
        SINTERCARD 1 a b
        SINTERCARD 2 a none
        SINTERCARD 1 text
        SADD p one
        SRANDMEMBER p
        SRANDMEMBER p 3
        SRANDMEMBER p -3
        SRANDMEMBER p 0
        SRANDMEMBER p x
        SRANDMEMBER p 1 2
        SRANDMEMBER p -9223372036854775808
        SRANDMEMBER none
        SRANDMEMBER none 2
        SRANDMEMBER text
        SPOP p 0
        SPOP p -1
        SPOP p x
        SPOP p 1 2
        SPOP p
        SPOP p
        SPOP p 2
        SADD p one two
        ~SPOP p 5
        EXISTS p
        SPOP text
        SSCAN none 0
        SSCAN i 0 MATCH 2
        SSCAN i 0 COUNT 0
        SSCAN text 0
        OBJECT ENCODING i
        OBJECT ENCODING e
        SADD i x
        OBJECT ENCODING i
    "#,
    );
}

#[test]
fn sorted_sets_answer_as_redis_does() {
    check(
        r#"
        ZADD z 1 a
        ZADD z 2 b 3 c 1 a
        ZADD z CH 5 a 2 b 9 d
        ZADD z XX 7 a 7 new
        ZADD z NX 8 a 7 new
        ZADD z GT 1 a
        ZADD z GT CH 100 a
        ZADD z LT CH 100 b
        ZADD z LT CH 1 b
        ZADD z GT CH 4 gtnew
        ZADD z XX GT CH 4 gtnone
        ZADD z NX XX 1 a
        ZADD z NX GT 1 a
        ZADD z NX LT 1 a
        ZADD z GT LT 1 a
        ZADD z INCR 5 a
        ZADD z INCR 5 a 6 b
        ZADD z NX INCR 5 a
        ZADD z XX INCR 5 none
        ZADD z GT INCR -5 a
        ZADD z LT INCR 5 a
        ZADD z CH INCR 1 fresh
        ZADD z x a
        ZADD z nan a
        ZADD z 1
        ZADD z NX
        ZADD z NX 1
        ZADD z 1 a 2
        ZADD z 1 a x b
        ZADD text 1 a
        ZADD z inf i +inf j -inf k infinity l -Infinity m
        ZADD z INCR -inf i
        ZADD z 1e400 big
        ZADD z 1e-400 small
        ZADD z 0x10 hex
        ZADD z 3.14 pi 1e20 e20 1e-7 small 0.1 tenth 123456789012345678 long
        ZADD z -0 minus
        ZSCORE z minus
        ZADD z 0 minus
        ZSCORE z minus
        ZADD zero 0 a -0 b
        ZRANGE zero 0 -1 WITHSCORES
        ZADD zero -0 a 1 b
        ZRANGE zero 0 -1 WITHSCORES
        ZADD zero XX INCR -1 b
        ZRANGE zero 0 -1 WITHSCORES
        ZSCORE z pi
        ZSCORE z none
        ZSCORE none a
        ZSCORE text a
        ZMSCORE z a none pi
        ZMSCORE none a b
        ZMSCORE text a
        ZCARD z
        ZCARD none
        ZCARD text
        ZRANGE z 0 -1
        ZRANGE z 0 -1 WITHSCORES
        ZRANGE z 1 3
        ZRANGE z -3 -2
        ZRANGE z 5 1
        ZRANGE z 0 100 REV
        ZRANGE z 1 2 REV WITHSCORES
        ZRANGE z -100 2
        ZRANGE z 100 200
        ZRANGE z x 2
        ZRANGE z 0 -1 LIMIT 0 1
        ZRANGE z 0 -1 LIMIT 0 -1
        ZRANGE z 0 -1 LIMIT 0
        ZRANGE z 0 -1 JUNK
        ZRANGE none 0 -1
        ZRANGE text 0 -1
        ZRANGE none x 1
        ZRANGE z 0 10 BYSCORE
        ZRANGE z (0 10 BYSCORE WITHSCORES
        ZRANGE z 0 (9 BYSCORE WITHSCORES
        ZRANGE z -inf +inf BYSCORE LIMIT 1 2
        ZRANGE z -inf +inf BYSCORE LIMIT 1 -1
        ZRANGE z -inf +inf BYSCORE LIMIT -1 5
        ZRANGE z -inf +inf BYSCORE LIMIT 0 0
        ZRANGE z -inf +inf BYSCORE LIMIT x 0
        ZRANGE z +inf -inf BYSCORE
        ZRANGE z +inf -inf BYSCORE REV
        ZRANGE z +inf -inf BYSCORE REV LIMIT 2 3
        ZRANGE z (5 (5 BYSCORE
        ZRANGE z a b BYSCORE
        ZRANGE z ( 5 BYSCORE
        ZRANGE z "" 5 BYSCORE
        ZRANGE z nan 5 BYSCORE
        ZRANGE z " 1" 5 BYSCORE
        ZRANGE z 1e999 5 BYSCORE
        ZRANGE z "1 " 5 BYSCORE
        ZRANGEBYSCORE z -inf inf
        ZRANGEBYSCORE z -inf inf WITHSCORES LIMIT 2 2
        ZRANGEBYSCORE z 1 5 REV
        ZRANGEBYSCORE z 1 5 BYSCORE
        ZREVRANGEBYSCORE z inf -inf
        ZREVRANGEBYSCORE z 9 (1 WITHSCORES
        ZREVRANGEBYSCORE z 1 9
        ZREVRANGE z 0 2
        ZREVRANGE z 0 2 WITHSCORES
        ZREVRANGE z 0 2 REV
        ZREVRANGE z 0 2 LIMIT 1 2
        ZADD lex 0 a 0 b 0 c 0 d 0 e 0 aa 0 "" 0 "\xff"
        ZRANGE lex - + BYLEX
        ZRANGE lex - + BYSCORE BYLEX
        ZRANGE lex 0 -1 BYSCORE BYLEX
        ZRANGE lex 0 -1 REV REV
        ZRANGE lex - + BYLEX BYLEX
        ZRANGESTORE none lex 0 -1 REV REV
        ZADD tiny 0x1p-1074 a 0x1p-1030 b 0x1.8p-1060 c 0x1p1023 d 0x1p-1080 e
        ZRANGE tiny 0 -1 WITHSCORES
        ZCOUNT tiny 0x1p-1074 +inf
        HSET twice f vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv f 5
        OBJECT ENCODING twice
        ZRANGE lex [a (d BYLEX
        ZRANGE lex (a [d BYLEX
        ZRANGE lex [d [a BYLEX
        ZRANGE lex [d [a BYLEX REV
        ZRANGE lex + - BYLEX
        ZRANGE lex + - BYLEX REV LIMIT 1 2
        ZRANGE lex + + BYLEX
        ZRANGE lex - - BYLEX
        ZRANGE lex [ [b BYLEX
        ZRANGE lex ( [b BYLEX
        ZRANGE lex (a (a BYLEX
        ZRANGE lex [a [a BYLEX
        ZRANGE lex a b BYLEX
        ZRANGE lex [a b BYLEX
        ZRANGE lex "" + BYLEX
        ZRANGE lex - + BYLEX WITHSCORES
        ZRANGEBYLEX lex [b +
        ZRANGEBYLEX lex - [c LIMIT 1 1
        ZRANGEBYLEX lex - + WITHSCORES
        ZREVRANGEBYLEX lex + [b
        ZREVRANGEBYLEX lex [b +
        ZLEXCOUNT lex - +
        ZLEXCOUNT lex [b (d
        ZLEXCOUNT lex [d (b
        ZLEXCOUNT none - +
        ZLEXCOUNT lex b c
        ZLEXCOUNT text - +
        ZCOUNT z -inf +inf
        ZCOUNT z 1 5
        ZCOUNT z (1 5
        ZCOUNT z 5 1
        ZCOUNT z (5 5
        ZCOUNT none 1 5
        ZCOUNT z a 5
        ZCOUNT text 1 5
        ZRANK z a
        ZRANK z none
        ZRANK none a
        ZRANK text a
        ZREVRANK z a
        ZREVRANK z none
        ZREVRANK z pi
        ZINCRBY z 1.5 a
        ZINCRBY z -1.5 newone
        ZINCRBY z x a
        ZINCRBY z NX 1
        ZINCRBY z incr a
        ZINCRBY text gt lt
        ZINCRBY z inf a
        ZINCRBY z -inf a
        ZINCRBY z inf k
        ZINCRBY text 1 a
        ZREM z none
        ZREM z a a b
        ZREM none a
        ZREM text a
        ZRANGESTORE d z 0 2
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d z 0 2 REV
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d z 1 9 BYSCORE
        ZRANGESTORE d z 1 9 BYSCORE LIMIT 1 1
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d lex [a [c BYLEX
        ZRANGE d 0 -1 WITHSCORES
        ZRANGESTORE d z 0 2 WITHSCORES
        ZRANGESTORE d none 0 -1
        EXISTS d
        ZRANGESTORE d text 0 -1
        ZRANGESTORE text z 0 1
        TYPE text
        SET text value
        ZRANGESTORE d z 0
        ZADD p 1 a 2 b 3 c 4 d 5 e
        ZPOPMIN p
        ZPOPMAX p
        ZPOPMIN p 2
        ZPOPMAX p 0
        ZPOPMIN p -1
        ZPOPMIN p x
        ZPOPMIN p 1 2
        ZPOPMAX p 10
        EXISTS p
        ZPOPMIN p
        ZPOPMIN p 3
        ZPOPMIN text
        ZPOPMIN text 0
        ZADD p 1 a 2 b 3 c 4 d 5 e
        ZMPOP 2 none p MIN
        ZMPOP 2 none p MAX COUNT 2
        ZMPOP 1 none MIN
        ZMPOP 1 text MIN
        ZMPOP 0 p MIN
        ZMPOP x p MIN
        ZMPOP 1 p
        ZMPOP 1 p JUNK
        ZMPOP 2 p MIN
        ZMPOP 5 p MIN
        ZMPOP 1 p MIN COUNT 0
        ZMPOP 1 p MIN COUNT -1
        ZMPOP 1 p MIN COUNT x
        ZMPOP 1 p MIN COUNT
        ZMPOP 1 p MIN COUNT 1 COUNT 2
        ZMPOP 1 p MIN JUNK 1
        ZMPOP 2 p none MIN COUNT 10
        EXISTS p
        ZADD r 1 a 2 b 3 c 4 d 5 e
        ZREMRANGEBYRANK r 0 1
        ZREMRANGEBYRANK r -1 -1
        ZREMRANGEBYRANK r 5 9
        ZREMRANGEBYRANK r x 9
        ZREMRANGEBYRANK none 0 1
        ZREMRANGEBYRANK text 0 1
        ZREMRANGEBYRANK r 0 -1
        EXISTS r
        ZADD r 1 a 2 b 3 c 4 d 5 e
        ZREMRANGEBYSCORE r (1 3
        ZREMRANGEBYSCORE r a 3
        ZREMRANGEBYSCORE none 1 3
        ZREMRANGEBYSCORE text 1 3
        ZREMRANGEBYSCORE r -inf +inf
        EXISTS r
        ZADD r 0 a 0 b 0 c 0 d 0 e
        ZREMRANGEBYLEX r [b (d
        ZREMRANGEBYLEX r b d
        ZREMRANGEBYLEX none - +
        ZREMRANGEBYLEX text - +
        ZREMRANGEBYLEX r - +
        EXISTS r
        ZADD u 1 a 2 b 3 c
        ZADD v 10 b 20 c 30 d
        SADD w b x
        ZUNION 2 u v
        ZUNION 2 u v WITHSCORES
        ZUNION 3 u v w WITHSCORES
        ZUNION 3 u v w WEIGHTS 1 2 3 WITHSCORES
        ZUNION 2 u v AGGREGATE MIN WITHSCORES
        ZUNION 2 u v AGGREGATE max WITHSCORES
        ZUNION 2 u v WEIGHTS 1 x
        ZUNION 2 u v WEIGHTS 1
        ZUNION 2 u v WEIGHTS inf -inf WITHSCORES
        ZUNION 2 u v WEIGHTS 0 0 WITHSCORES
        ZUNION 2 u v WEIGHTS nan 1
        ZUNION 2 u u WITHSCORES
        ZUNION 2 u v AGGREGATE junk
        ZUNION 2 u v AGGREGATE
        ZUNION 2 u v JUNK
        ZUNION 0 u v
        ZUNION x u v
        ZUNION -1 u v
        ZUNION 3 u v
        ZUNION 1 none
        ZUNION 2 u text
        ZUNION 2 text u JUNK
        ZINTER 2 u v WITHSCORES
        ZINTER 3 u v w WITHSCORES
        ZINTER 2 u none WITHSCORES
        ZINTER 2 u v WEIGHTS 2 3 AGGREGATE SUM WITHSCORES
        ZINTER 2 u text
        ZDIFF 2 u v WITHSCORES
        ZDIFF 2 u v
        ZDIFF 1 u WITHSCORES
        ZDIFF 2 none u
        ZDIFF 2 u u
        ZDIFF 2 u v WEIGHTS 1 2
        ZDIFF 2 w u WITHSCORES
        ZUNIONSTORE d 2 u v
        ZRANGE d 0 -1 WITHSCORES
        ZUNIONSTORE d 2 u v WITHSCORES
        ZUNIONSTORE d 0 u
        ZINTERSTORE d 2 u v WEIGHTS 2 0.5
        ZRANGE d 0 -1 WITHSCORES
        ZINTERSTORE d 0 u
        ZDIFFSTORE d 2 u v
        ZRANGE d 0 -1 WITHSCORES
        ZDIFFSTORE d 2 u u
        EXISTS d
        ZDIFFSTORE d 0 u
        ZUNIONSTORE u 2 u v
        ZRANGE u 0 -1 WITHSCORES
        ZUNIONSTORE text 1 u
        TYPE text
        SET text value
        ZINTERCARD 2 u v
        ZINTERCARD 2 u v LIMIT 1
        ZINTERCARD 2 u v LIMIT 0
        ZINTERCARD 2 u v LIMIT -1
        ZINTERCARD 2 u v LIMIT x
        ZINTERCARD 2 u v LIMIT
        ZINTERCARD 2 u v JUNK
        ZINTERCARD 2 u v WEIGHTS 1 2
        ZINTERCARD 2 u none
        ZINTERCARD 0 u
        ZINTERCARD 1 text
        ZADD one 1.5 m
        ZRANDMEMBER one
        ZRANDMEMBER one 2
        ZRANDMEMBER one 2 WITHSCORES
        ZRANDMEMBER one -2 WITHSCORES
        ZRANDMEMBER one 0
        ZRANDMEMBER one x
        ZRANDMEMBER one 1 WITHVALUES
        ZRANDMEMBER one -9223372036854775808
        ZRANDMEMBER one -9223372036854775807 WITHSCORES
        ZRANDMEMBER none
        ZRANDMEMBER none 2
        ZRANDMEMBER text
        ?ZRANDMEMBER u 2 WITHSCORES
        ZSCAN one 0
        ZSCAN none 0
        ZSCAN one 0 MATCH x
        ZSCAN text 0
        ZSCAN zero 0 MATCH a
        OBJECT ENCODING one
        TYPE one
    "#,
    );
}

#[test]
fn lists_answer_as_redis_does() {
    check(
        r#"
        LPUSH l a b c
        RPUSH l d e
        LPUSH l
        LPUSH text a
        LPUSHX none a
        RPUSHX none a
        LPUSHX l x y
        RPUSHX l z
        LPUSHX text a
        LRANGE l 0 -1
        LRANGE l 1 2
        LRANGE l -3 -2
        LRANGE l 5 1
        LRANGE l -100 100
        LRANGE l 100 200
        LRANGE l x 1
        LRANGE none 0 -1
        LRANGE none x 1
        LRANGE text 0 -1
        LLEN l
        LLEN none
        LLEN text
        LINDEX l 0
        LINDEX l -1
        LINDEX l 7
        LINDEX l 8
        LINDEX l -8
        LINDEX l -9
        LINDEX l x
        LINDEX none 0
        LINDEX none x
        LINDEX text 0
        LINDEX l 9223372036854775807
        LINDEX l -9223372036854775808
        LSET l 0 first
        LSET l -1 last
        LSET l 100 x
        LSET l x y
        LSET none 0 x
        LSET none x y
        LSET text 0 x
        LRANGE l 0 -1
        LINSERT l BEFORE d inserted
        LINSERT l AFTER d after
        LINSERT l AFTER none x
        LINSERT none BEFORE a x
        LINSERT l JUNK a x
        LINSERT text BEFORE a x
        LINSERT l before first 0
        LINSERT l after last 99
        LRANGE l 0 -1
        LPOP l
        RPOP l
        LPOP l 2
        RPOP l 2
        LPOP l 0
        LPOP l -1
        LPOP l x
        LPOP l 1 2
        LPOP none
        LPOP none 2
        LPOP none 0
        LPOP text
        LPOP none -1
        RPOP l 100
        EXISTS l
        RPUSH r a b a c a d a
        LREM r 2 a
        LRANGE r 0 -1
        LREM r -1 a
        LRANGE r 0 -1
        LREM r 0 none
        LREM r x a
        LREM none 0 a
        LREM text 0 a
        LREM r 0 a
        LRANGE r 0 -1
        LREM r 0 b
        LREM r 0 c
        LREM r 0 d
        EXISTS r
        RPUSH t a b c d e f
        LTRIM t 1 -2
        LRANGE t 0 -1
        LTRIM t x 1
        LTRIM none 0 1
        LTRIM text 0 1
        LTRIM t -100 100
        LTRIM t 1 1
        LRANGE t 0 -1
        LTRIM t 5 9
        EXISTS t
        RPUSH p a b c 1 2 3 c c
        LPOS p c
        LPOS p c RANK 2
        LPOS p c RANK -1
        LPOS p c RANK -2
        LPOS p c RANK 9
        LPOS p c RANK 9223372036854775807
        LPOS p c RANK -9223372036854775807
        LPOS p c RANK -9223372036854775809
        LPOS p c RANK 0
        LPOS p c RANK x
        LPOS p c COUNT 2
        LPOS p c COUNT 0
        LPOS p c RANK -1 COUNT 2
        LPOS p c COUNT -1
        LPOS p c COUNT x
        LPOS p c MAXLEN 2
        LPOS p c MAXLEN 3
        LPOS p c MAXLEN 3 COUNT 0
        LPOS p c MAXLEN 3 COUNT 0 RANK -1
        LPOS p c MAXLEN -1
        LPOS p c MAXLEN
        LPOS p c JUNK 1
        LPOS p none
        LPOS p none COUNT 1
        LPOS none c
        LPOS none c COUNT 1
        LPOS text c
        LMOVE p q LEFT RIGHT
        LMOVE p q RIGHT LEFT
        LMOVE p p LEFT RIGHT
        LMOVE p p RIGHT RIGHT
        LMOVE p q LEFT JUNK
        LMOVE none q LEFT RIGHT
        LMOVE p text LEFT RIGHT
        LMOVE text p LEFT RIGHT
        LMOVE none text LEFT RIGHT
        LRANGE p 0 -1
        LRANGE q 0 -1
        RPOPLPUSH p q
        RPOPLPUSH q q
        RPOPLPUSH none q
        RPOPLPUSH text q
        RPOPLPUSH p text
        RPUSH single x
        LMOVE single single LEFT RIGHT
        LMOVE single q LEFT RIGHT
        EXISTS single
        LMPOP 2 none q LEFT
        LMPOP 2 none q RIGHT COUNT 2
        LMPOP 1 none LEFT
        LMPOP 1 text LEFT
        LMPOP 0 q LEFT
        LMPOP x q LEFT
        LMPOP 1 q
        LMPOP 1 q JUNK
        LMPOP 3 q LEFT
        LMPOP 1 q LEFT COUNT 0
        LMPOP 1 q LEFT COUNT x
        LMPOP 1 q LEFT COUNT 1 COUNT 1
        LMPOP 1 q LEFT COUNT 100
        EXISTS q
        OBJECT ENCODING p
    "#,
    );
}
