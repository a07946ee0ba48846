// go-redis against a running server: pipelines, transactions, scans and every type, over RESP3 and RESP2.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var failures int

func check(name string, run func() error) {
	if err := run(); err != nil {
		failures++
		fmt.Printf("not ok - go-redis %s: %v\n", name, err)
		return
	}
	fmt.Printf("ok - go-redis %s\n", name)
}

func want[T comparable](what string, got, wanted T) error {
	if got != wanted {
		return fmt.Errorf("%s: got %v, want %v", what, got, wanted)
	}
	return nil
}

func main() {
	// Against hangs only: a machine that does much else is waited for.
	patience := 4 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, protocol := range []int{2, 3} {
		db := redis.NewClient(&redis.Options{
			Addr: os.Args[1], DB: 9, Protocol: protocol,
			DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
		})
		name := func(text string) string { return fmt.Sprintf("RESP%d: %s", protocol, text) }
		db.FlushDB(ctx)
		check(name("strings"), func() error {
			value := bytes.Repeat([]byte("pumice\x00"), 100_000)
			if err := db.Set(ctx, "k", value, time.Minute).Err(); err != nil {
				return err
			}
			got, err := db.Get(ctx, "k").Bytes()
			if err != nil || !bytes.Equal(got, value) {
				return fmt.Errorf("GET: %d bytes, %v", len(got), err)
			}
			if _, err := db.Get(ctx, "none").Result(); !errors.Is(err, redis.Nil) {
				return fmt.Errorf("GET of no key: %v", err)
			}
			return want("SETNX", db.SetNX(ctx, "k", "x", 0).Val(), false)
		})
		check(name("pipeline of 1,000"), func() error {
			pipe := db.Pipeline()
			for i := range 1000 {
				pipe.Incr(ctx, fmt.Sprint("c", i%10))
			}
			if _, err := pipe.Exec(ctx); err != nil {
				return err
			}
			return want("counter", db.Get(ctx, "c3").Val(), "100")
		})
		check(name("hashes, sets, sorted sets, lists"), func() error {
			db.HSet(ctx, "h", "a", 1, "b", 2)
			db.SAdd(ctx, "s", "x", "y", "z")
			db.ZAdd(ctx, "z", redis.Z{Score: 2, Member: "two"}, redis.Z{Score: 1, Member: "one"})
			db.RPush(ctx, "l", "1", "2", "3")
			return errors.Join(
				want("HGETALL", db.HGetAll(ctx, "h").Val()["b"], "2"),
				want("SCARD", db.SCard(ctx, "s").Val(), 3),
				want("ZRANGE", db.ZRangeWithScores(ctx, "z", 0, -1).Val()[1], redis.Z{Score: 2, Member: "two"}),
				want("LRANGE", fmt.Sprint(db.LRange(ctx, "l", 0, -1).Val()), "[1 2 3]"),
			)
		})
		check(name("optimistic transactions of 8 writers"), func() error {
			var group sync.WaitGroup
			for range 8 {
				group.Add(1)
				go func() {
					defer group.Done()
					for done := 0; done < 20; {
						err := db.Watch(ctx, func(tx *redis.Tx) error {
							n, err := tx.Get(ctx, "shared").Int()
							if err != nil && !errors.Is(err, redis.Nil) {
								return err
							}
							_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
								return pipe.Set(ctx, "shared", n+1, 0).Err()
							})
							return err
						}, "shared")
						if err == nil {
							done++
						} else if !errors.Is(err, redis.TxFailedErr) {
							return
						}
					}
				}()
			}
			group.Wait()
			return want("sum", db.Get(ctx, "shared").Val(), "160")
		})
		check(name("scan"), func() error {
			seen := map[string]bool{}
			for iter := db.Scan(ctx, 0, "c*", 3).Iterator(); iter.Next(ctx); {
				seen[iter.Val()] = true
			}
			return want("keys", len(seen), 10)
		})
		db.FlushDB(ctx)
		db.Close()
	}
	fmt.Println("go-redis done")
	if failures > 0 {
		os.Exit(1)
	}
}
