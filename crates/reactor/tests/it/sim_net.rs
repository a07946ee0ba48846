//! Connections of the simulated world: order, windows, partitions, resets, kills.

use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_reactor::driver::ShutdownHow;
use pumice_reactor::sim::{HostId, HostOptions, LinkModel, World};
use pumice_reactor::{Addr, ListenOptions, Listener, Stream, now, sleep, spawn, timeout};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::rc::Rc;
use std::time::Duration;

fn two_hosts(seed: u64, quirks: bool) -> (World, HostId, HostId) {
    let world = World::new(seed);
    let server = world.add_host(HostOptions { quirks, ..HostOptions::default() });
    let client = world.add_host(HostOptions { quirks, ..HostOptions::default() });
    (world, server, client)
}

fn any(port: u16) -> Addr {
    format!("0.0.0.0:{port}").parse().expect("an address")
}

/// Echoes on every core of `host`.
fn serve_echo(world: &World, host: HostId) {
    world.start(host, |_| {
        Box::pin(async {
            let listener = Listener::bind(&any(7), ListenOptions::default()).await.expect("binds");
            loop {
                let (mut stream, _) = listener.accept().await.expect("accepts");
                spawn(async move {
                    while let Ok(data) = stream.recv().await {
                        if data.is_empty() || stream.send_one(data.to_vec()).await.0.is_err() {
                            break;
                        }
                    }
                });
            }
        })
    });
}

/// Sends `bytes` random bytes and reads them back.
async fn echo(addr: Addr, seed: u64, bytes: usize) -> Result<(), ErrorKind> {
    let stream = Stream::connect(&addr).await.map_err(|error| error.kind())?;
    let mut data = vec![0; bytes];
    Rng::from_seed(seed).fill(&mut data);
    let expected = data.clone();
    let (mut receiving, sending) = stream.split();
    let sender = spawn(async move {
        let mut rest = Bytes::from(data);
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(10_007));
            let middle = piece.len() / 3;
            sending
                .send(vec![piece.slice(..middle), piece.slice(middle..)])
                .await
                .map_err(|error| error.kind())?;
        }
        sending.shutdown(ShutdownHow::Send).await.map_err(|error| error.kind())
    });
    let mut seen = Vec::new();
    loop {
        let piece = receiving.recv().await.map_err(|error| error.kind())?;
        if piece.is_empty() {
            break;
        }
        seen.extend_from_slice(&piece);
    }
    sender.await.expect("runs")?;
    assert!(seen == expected, "{} bytes came back of {}", seen.len(), expected.len());
    Ok(())
}

#[test]
fn many_connections_echo_everything_in_order() {
    let (world, server, client) = two_hosts(1, true);
    serve_echo(&world, server);
    world.run_for(Duration::from_millis(1));
    let addr = world.addr(server, 7);
    let done = world.block_on(client, async move {
        let tasks: Vec<_> = (0..50).map(|seed| spawn(echo(addr.clone(), seed, 200_000))).collect();
        for task in tasks {
            assert_eq!(task.await.expect("runs"), Ok(()));
        }
    });
    assert_eq!(done, Ok(()));
    assert_eq!(world.net_counters().connections, 50);
}

#[test]
fn a_connection_takes_the_links_latency_and_bandwidth() {
    let (world, server, client) = two_hosts(1, false);
    let link = LinkModel {
        latency_ns: 1_000_000,
        jitter_ns: 0,
        bytes_per_second: 1_000_000,
        ..LinkModel::default()
    };
    world.set_link(server, client, link);
    serve_echo(&world, server);
    world.run_for(Duration::from_millis(1));
    let addr = world.addr(server, 7);
    let took = world.block_on(client, async move {
        let start = now();
        echo(addr, 1, 100_000).await.map(|()| now().since(start))
    });
    // 0.1 s each way, overlapping, and three round trips at most.
    let took = took.expect("ends").expect("echoes");
    assert!(took > Duration::from_millis(100) && took < Duration::from_millis(300), "{took:?}");
}

#[test]
fn a_reader_that_does_not_read_stops_its_sender() {
    let (world, server, client) = two_hosts(1, false);
    world.set_socket_buffers(64 << 10, 64 << 10);
    world.run(server, 0, async {
        let listener = Listener::bind(&any(7), ListenOptions::default()).await.expect("binds");
        let stream = listener.accept().await.expect("accepts");
        sleep(Duration::from_secs(100)).await;
        drop(stream);
    });
    let addr = world.addr(server, 7);
    let sent = Rc::new(RefCell::new(0usize));
    let counted = Rc::clone(&sent);
    let ended = world.block_on(client, async move {
        let stream = Stream::connect(&addr).await.expect("connects");
        let pieces = timeout(Duration::from_secs(50), async {
            loop {
                stream.send_one(vec![1; 1000]).await.0.expect("sends");
                *counted.borrow_mut() += 1000;
            }
        });
        let stuck = pieces.await.map(|()| unreachable!()).is_err();
        // The reader closes with bytes unread: a reset.
        let broken = loop {
            if let (Err(error), _) = stream.send_one(vec![1; 1000]).await {
                break error.kind();
            }
        };
        (stuck, broken)
    });
    assert!(matches!(ended, Ok((true, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))), "{ended:?}");
    assert!(*sent.borrow() < 300_000, "{} bytes were taken", sent.borrow());
}

#[test]
fn nobody_listening_refuses_and_a_partition_times_out() {
    let (world, server, client) = two_hosts(1, true);
    let addr = world.addr(server, 9);
    let target = addr.clone();
    let refused =
        world.block_on(client, async move { Stream::connect(&target).await.map(drop).map_err(|e| e.kind()) });
    assert_eq!(refused, Ok(Err(ErrorKind::ConnectionRefused)));
    world.partition(server, client);
    let silent =
        world.block_on(client, async move { Stream::connect(&addr).await.map(drop).map_err(|e| e.kind()) });
    assert_eq!(silent, Ok(Err(ErrorKind::TimedOut)));
}

#[test]
fn what_a_partition_holds_back_arrives_when_it_heals() {
    let (world, server, client) = two_hosts(3, true);
    serve_echo(&world, server);
    world.run_for(Duration::from_millis(1));
    let addr = world.addr(server, 7);
    let task = world.run(client, 0, echo(addr, 5, 3_000_000));
    world.run_for(Duration::from_millis(1));
    world.partition(server, client);
    world.run_for(Duration::from_secs(60));
    let before = world.net_counters().bytes;
    world.run_for(Duration::from_secs(60));
    assert_eq!(world.net_counters().bytes, before);
    world.heal(server, client);
    let done = world.block_on(client, task);
    assert!(matches!(done, Ok(Ok(Ok(())))), "{done:?}");
}

#[test]
fn resets_and_kills_break_connections_and_a_restarted_server_takes_new_ones() {
    let (world, server, client) = two_hosts(4, true);
    for round in 0..3 {
        serve_echo(&world, server);
        world.run_for(Duration::from_millis(1));
        let addr = world.addr(server, 7);
        let task = world.run(client, 0, echo(addr.clone(), 5, 30_000_000));
        world.run_for(Duration::from_millis(5));
        match round {
            0 => world.reset_connections(server, client),
            1 => world.kill(server),
            _ => world.crash(server),
        }
        let broken = world.block_on(client, task);
        assert!(matches!(broken, Ok(Ok(Err(_)))), "round {round}: {broken:?}");
        if round > 0 {
            let refused = world.block_on(client, async move {
                Stream::connect(&addr).await.map(drop).map_err(|e| e.kind())
            });
            assert_eq!(refused, Ok(Err(ErrorKind::ConnectionRefused)));
            world.restart(server);
        }
    }
}

#[test]
fn loopback_and_unix_sockets_stay_on_their_host() {
    let (world, server, client) = two_hosts(5, true);
    for addr in ["127.0.0.1:7", "unix:/run/pumice"] {
        let addr: Addr = addr.parse().expect("an address");
        let (bound, near) = (addr.clone(), addr.clone());
        let local = world.block_on(server, async move {
            let listener = Listener::bind(&bound, ListenOptions::default()).await.expect("binds");
            let again = ListenOptions { reuse_port: false, ..ListenOptions::default() };
            assert!(Listener::bind(&bound, again).await.is_err());
            let accepting = spawn(async move { listener.accept().await.map(|(_, peer)| peer) });
            let stream = Stream::connect(&near).await.expect("connects");
            let peer = accepting.await.expect("runs").expect("accepts");
            (peer.is_local(), stream.peer().is_local())
        });
        assert_eq!(local, Ok((true, true)));
        let far = world.block_on(client, async move { Stream::connect(&addr).await.is_err() });
        assert_eq!(far, Ok(true));
    }
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let run = |seed| {
        let (world, server, client) = two_hosts(seed, true);
        world.set_default_link(LinkModel { loss: 0.01, ..LinkModel::default() });
        serve_echo(&world, server);
        world.run_for(Duration::from_millis(1));
        let tasks: Vec<_> = (0..10)
            .map(|index| world.run(client, index % 2, echo(world.addr(server, 7), seed, 50_000)))
            .collect();
        world.run_for(Duration::from_secs(30));
        assert!(tasks.iter().all(|task| task.is_finished()));
        world.event_hash()
    };
    let hashes: BTreeSet<u64> = (0..8).map(run).collect();
    assert_eq!(hashes.len(), 8);
    assert!((0..8).all(|seed| hashes.contains(&run(seed))));
}
