//! Listeners and streams.

use super::{PATIENCE, Place};
use bytes::Bytes;
use pumice_base::rng::Rng;
use pumice_reactor::sync::Notify;
use pumice_reactor::{
    Addr, Came, IoBuf, JoinHandle, ListenOptions, Listener, RecvHalf, SendHalf, Stream, sleep, spawn,
    timeout, yield_now,
};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

async fn listen(addr: &Addr) -> (Listener, Addr) {
    let listener = Listener::bind(addr, ListenOptions::default()).await.unwrap();
    let addr = listener.local_addr().clone();
    (listener, addr)
}

/// Answers every connection with what it sends, until it ends.
fn serve_echo(listener: Listener) {
    spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            spawn(async move {
                loop {
                    let bytes = stream.recv().await?;
                    if bytes.is_empty() {
                        return io::Result::Ok(());
                    }
                    let half = bytes.len() / 2;
                    let parts =
                        vec![Bytes::copy_from_slice(&bytes[..half]), Bytes::copy_from_slice(&bytes[half..])];
                    drop(bytes);
                    stream.send(parts).await?;
                }
            });
        }
    });
}

/// Receives exactly so many bytes.
async fn receive(stream: &mut Stream, bytes: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let piece = timeout(PATIENCE, stream.recv()).await.expect("bytes come in time").unwrap();
        assert!(!piece.is_empty(), "the stream ended after {} of {bytes} bytes", all.len());
        all.extend_from_slice(&piece);
    }
    assert_eq!(all.len(), bytes);
    all
}

async fn echo_at(addr: &Addr) {
    let mut stream = Stream::connect(addr).await.unwrap();
    for i in 0..10u8 {
        let (sent, back) = stream.send_one(vec![i; 100]).await;
        sent.unwrap();
        assert_eq!(back, vec![i; 100]);
        assert_eq!(receive(&mut stream, 100).await, back);
    }
}

pub async fn echo_over_tcp(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    serve_echo(listener);
    echo_at(&addr).await;
}

pub async fn echo_over_a_unix_socket(place: Place) {
    let addr = Addr::Unix(place.dir.join("socket"));
    let (listener, addr) = listen(&addr).await;
    serve_echo(listener);
    echo_at(&addr).await;
}

pub async fn many_connections_at_once(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    serve_echo(listener);
    let done = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..place.many)
        .map(|i| {
            let (addr, done) = (addr.clone(), Rc::clone(&done));
            let count = place.many;
            spawn(async move {
                let mut stream = timeout(PATIENCE, Stream::connect(&addr)).await.expect("connects").unwrap();
                let message = i.to_le_bytes();
                stream.send_one(message.to_vec()).await.0.unwrap();
                assert_eq!(receive(&mut stream, message.len()).await, message);
                // All stay open until all have been answered.
                done.set(done.get() + 1);
                while done.get() < count {
                    sleep(Duration::from_millis(5)).await;
                }
                stream.send_one(message.to_vec()).await.0.unwrap();
                assert_eq!(receive(&mut stream, message.len()).await, message);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Bytes that depend on their position.
fn pattern(from: usize, bytes: usize) -> Vec<u8> {
    (from..from + bytes).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

async fn expect_pattern(mut half: RecvHalf, bytes: usize) {
    let mut at = 0;
    while at < bytes {
        let piece = half.recv().await.unwrap();
        assert!(!piece.is_empty(), "the end came after {at} of {bytes} bytes");
        assert_eq!(&*piece, pattern(at, piece.len()), "at {at}");
        at += piece.len();
        if at % 7 == 0 {
            yield_now().await;
        }
    }
    assert!(half.recv().await.unwrap().is_empty());
}

pub async fn large_transfers_arrive_whole_both_ways(place: Place) {
    const BYTES: usize = 6 << 20;
    let (listener, addr) = listen(&place.any_port).await;
    let mut rng = Rng::from_seed(7);
    let mut sides = Vec::new();
    let (near, far) = {
        let accepting = spawn(async move { listener.accept().await.unwrap().0 });
        let near = Stream::connect(&addr).await.unwrap();
        (near, accepting.await.unwrap())
    };
    for stream in [near, far] {
        let (receiver, sender) = stream.split();
        sides.push(spawn(expect_pattern(receiver, BYTES)));
        let mut rng = Rng::from_seed(rng.next_u64());
        sides.push(spawn(async move {
            let mut at = 0;
            while at < BYTES {
                let mut parts = Vec::new();
                for _ in 0..1 + rng.below(2000) {
                    let piece = rng.below(700).min((BYTES - at) as u64) as usize;
                    parts.push(Bytes::from(pattern(at, piece)));
                    at += piece;
                }
                sender.send(parts).await.unwrap();
            }
            sender.shutdown(pumice_reactor::driver::ShutdownHow::Send).await.unwrap();
        }));
    }
    for side in sides {
        timeout(PATIENCE, side).await.expect("in time").unwrap();
    }
}

pub async fn a_peer_that_does_not_read_stops_its_sender_only(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let silent = Stream::connect(&addr).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let sent = Rc::new(Cell::new(0u64));
    let counter = Rc::clone(&sent);
    let sender = spawn(async move {
        let piece = Bytes::from(vec![1; 1 << 20]);
        for _ in 0..64 {
            stream.send(vec![piece.clone()]).await.unwrap();
            counter.set(counter.get() + piece.len() as u64);
        }
    });
    serve_echo(listener);
    echo_at(&addr).await;
    sleep(Duration::from_millis(50)).await;
    assert!(sent.get() < 32 << 20, "{} bytes were taken from a sender whose peer does not read", sent.get());
    assert!(!sender.is_finished());
    sender.abort();
    drop(silent);
    echo_at(&addr).await;
}

pub async fn half_closed_streams_still_receive(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let server = spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut all = Vec::new();
        loop {
            let piece = stream.recv().await.unwrap();
            if piece.is_empty() {
                break;
            }
            all.extend_from_slice(&piece);
        }
        assert!(stream.recv().await.unwrap().is_empty(), "the end stays the end");
        stream.send_one(all).await.0.unwrap();
    });
    let mut stream = Stream::connect(&addr).await.unwrap();
    stream.send_one(b"question".to_vec()).await.0.unwrap();
    stream.shutdown(pumice_reactor::driver::ShutdownHow::Send).await.unwrap();
    assert_eq!(receive(&mut stream, 8).await, b"question");
    server.await.unwrap();
    assert!(timeout(PATIENCE, stream.recv()).await.expect("ends").unwrap().is_empty());
}

pub async fn unread_input_of_many_starves_nobody(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let listener = Rc::new(listener);
    let mut talkers = Vec::new();
    let mut deaf = Vec::new();
    for _ in 0..place.many.min(300) {
        let (sender, accepted) = (Stream::connect(&addr).await.unwrap(), listener.accept().await.unwrap().0);
        talkers.push(spawn(async move { sender.send(vec![Bytes::from(vec![5; 256 << 10])]).await }));
        deaf.push(accepted);
    }
    // Each begins to receive, so that buffers fill, and takes no more than one.
    for stream in &mut deaf {
        drop(timeout(PATIENCE, stream.recv()).await.expect("first bytes").unwrap());
    }
    let echo = Rc::clone(&listener);
    spawn(async move {
        let (mut stream, _) = echo.accept().await.unwrap();
        loop {
            let bytes = stream.recv().await.unwrap().to_vec();
            if bytes.is_empty() {
                break;
            }
            stream.send_one(bytes).await.0.unwrap();
        }
    });
    timeout(PATIENCE, echo_at(&addr)).await.expect("others are served");
    // And the deaf ones lost nothing.
    for stream in &mut deaf {
        let mut rest = 0;
        while rest < 100 << 10 {
            let piece = timeout(PATIENCE, stream.recv()).await.expect("more bytes").unwrap();
            assert!(!piece.is_empty() && piece.iter().all(|&b| b == 5));
            rest += piece.len();
        }
    }
}

pub async fn streams_dropped_while_receiving_close(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    for round in 0..50u32 {
        let mut near = Stream::connect(&addr).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let receiving = spawn(async move { far.recv().await.map(|bytes| bytes.len()) });
        if round % 2 == 0 {
            yield_now().await;
        }
        receiving.abort();
        let end = timeout(PATIENCE, near.recv()).await.expect("the end comes");
        assert!(end.is_err() || end.unwrap().is_empty());
    }
}

/// The first of its core, too, with which a kernel may show that it does not know such receives.
pub async fn a_receive_dropped_before_the_kernel_has_it_ends_at_once(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let mut near = Stream::connect(&addr).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    {
        let mut receiving = pin!(far.recv());
        let begun = poll_fn(|context| Poll::Ready(receiving.as_mut().poll(context).is_ready()));
        assert!(!begun.await, "nothing was sent");
    }
    drop(far);
    let end = timeout(Duration::from_secs(20), near.recv()).await.expect("the end comes").unwrap();
    assert!(end.is_empty());
}

pub async fn a_send_to_a_closed_peer_fails(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let near = Stream::connect(&addr).await.unwrap();
    drop(listener.accept().await.unwrap());
    let failed = timeout(PATIENCE, async {
        while near.send_one(vec![0; 1000]).await.0.is_ok() {
            sleep(Duration::from_millis(1)).await;
        }
    });
    failed.await.expect("the send fails in the end");
}

/// More than a connection holds on its way, until it has received much: from then on the kernel gives it more room.
const MUCH_BYTES: usize = 6 << 20;

/// A send that is awaited only when somebody says so.
struct Unawaited {
    polls: Rc<Cell<u32>>,
    is_awaited: Rc<Cell<bool>>,
    again: Rc<Notify>,
    task: JoinHandle<io::Result<()>>,
}

impl Unawaited {
    fn begin(sender: &SendHalf, bytes: usize) -> Self {
        let (polls, is_awaited, again) =
            (Rc::<Cell<u32>>::default(), Rc::<Cell<bool>>::default(), Rc::<Notify>::default());
        let (counted, asked, told, sender) =
            (polls.clone(), is_awaited.clone(), again.clone(), sender.clone());
        let task = spawn(async move {
            let mut sending = sender.begin_send(vec![Bytes::from(vec![7; bytes])]);
            let mut told = pin!(told.notified());
            let mut was_told = false;
            let sent = poll_fn(|context| {
                counted.set(counted.get() + 1);
                was_told = was_told || told.as_mut().poll(context).is_ready();
                sending.poll(context, asked.get())
            });
            sent.await.0
        });
        Self { polls, is_awaited, again, task }
    }

    async fn end(self) -> io::Result<()> {
        timeout(PATIENCE, self.task).await.expect("the send ends").unwrap()
    }
}

pub async fn an_unawaited_send_wakes_nobody_unless_it_fails(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let mut client = Stream::connect(&addr).await.unwrap();
    let (_receiver, sender) = listener.accept().await.unwrap().0.split();

    let short = Unawaited::begin(&sender, 100);
    assert_eq!(receive(&mut client, 100).await, vec![7; 100]);
    sleep(Duration::from_millis(20)).await;
    assert_eq!(short.polls.get(), 1, "it was woken to hear that all has left");
    short.again.notify_one();
    let polls = short.polls.clone();
    short.end().await.unwrap();
    assert_eq!(polls.get(), 2);

    // Who begins to wait while it is under way hears of its end.
    let long = Unawaited::begin(&sender, MUCH_BYTES);
    sleep(Duration::from_millis(20)).await;
    assert!(!long.task.is_finished(), "a connection holds more than was thought");
    long.is_awaited.set(true);
    long.again.notify_one();
    receive(&mut client, MUCH_BYTES).await;
    long.end().await.unwrap();

    // On a connection of its own: one that has received as much may hold all of it, and there is nothing to fail.
    let client = Stream::connect(&addr).await.unwrap();
    let (_receiver, sender) = listener.accept().await.unwrap().0.split();
    let long = Unawaited::begin(&sender, MUCH_BYTES);
    sleep(Duration::from_millis(20)).await;
    drop(client);
    long.end().await.unwrap_err();
}

pub async fn nobody_listening_is_refused(place: Place) {
    let (listener, addr) = listen(&place.own_address).await;
    drop(listener);
    // The kernel closes it in its own time.
    let refused = timeout(PATIENCE, async {
        loop {
            match Stream::connect(&addr).await {
                Ok(_) => sleep(Duration::from_millis(1)).await,
                Err(error) => break error,
            }
        }
    });
    let error = refused.await.expect("a dropped listener takes no more connections in the end");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
}

pub async fn a_dropped_listener_frees_its_address(place: Place) {
    let options = ListenOptions { reuse_port: false, ..ListenOptions::default() };
    let listener = Listener::bind(&place.own_address, options.clone()).await.unwrap();
    let addr = listener.local_addr().clone();
    // Accepting, so that an operation holds the socket.
    let accepting = spawn(async move { listener.accept().await.map(drop) });
    yield_now().await;
    let taken = Listener::bind(&addr, options.clone()).await.err().expect("the address is taken");
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    accepting.abort();
    // The kernel ends the operation, and with it the socket, in its own time.
    let free = timeout(PATIENCE, async {
        loop {
            match Listener::bind(&addr, options.clone()).await {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    sleep(Duration::from_millis(1)).await;
                }
                other => break other,
            }
        }
    });
    free.await.expect("the address of a dropped listener becomes free").unwrap();
}

pub async fn held_receive_buffers_do_not_block_others(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let mut held = Vec::new();
    let mut streams = Vec::new();
    for _ in 0..place.many.min(600) {
        let (near, mut far) = (Stream::connect(&addr).await.unwrap(), listener.accept().await.unwrap().0);
        near.send_one(vec![6]).await.0.unwrap();
        let buf = timeout(PATIENCE, far.recv()).await.expect("comes although all others are held").unwrap();
        assert_eq!(&*buf, [6]);
        held.push(buf);
        streams.push((near, far));
    }
    drop(held);
    for (near, far) in &mut streams {
        near.send_one(vec![8; 64]).await.0.unwrap();
        assert_eq!(receive(far, 64).await, [8; 64]);
    }
}

/// Many streams bring much at once. Some keep a buffer, some leave with bytes to come: all others get theirs whole.
pub async fn streams_that_bring_much_take_turns_with_receive_buffers(place: Place) {
    const BYTES: usize = 64 << 10;
    let (listener, addr) = listen(&place.any_port).await;
    let (mut kept, mut senders, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..place.many.min(40) {
        let (near, mut far) = (Stream::connect(&addr).await.unwrap(), listener.accept().await.unwrap().0);
        senders.push(spawn(async move { near.send_one(vec![number as u8; BYTES]).await.0 }));
        if number == 0 {
            kept.push((far.recv().await.unwrap(), far));
            continue;
        }
        receivers.push(spawn(async move {
            let leaves = number % 5 == 0;
            let mut got = 0;
            while got < if leaves { BYTES / 8 } else { BYTES } {
                let buf = far.recv().await.unwrap();
                assert!(!buf.is_empty() && buf.iter().all(|byte| *byte == number as u8));
                got += buf.len();
                yield_now().await;
            }
        }));
    }
    for receiver in receivers {
        timeout(PATIENCE, receiver).await.expect("its turn comes").unwrap();
    }
    drop(kept);
    for sender in senders {
        // To those that left it may fail.
        let _ = timeout(PATIENCE, sender).await.expect("nobody receives for ever").unwrap();
    }
}

/// Large and small receive buffers take turns under one connection: nothing is lost, doubled or out of order.
pub async fn long_and_short_messages_in_turns_arrive_whole(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let near = Stream::connect(&addr).await.unwrap();
    let (mut far, _) = listener.accept().await.unwrap();
    let (_receiver, sender) = near.split();
    let lens = (0..3).flat_map(|_| std::iter::once(100_000).chain([60; 80]).chain([4096, 4095, 1]));
    for (number, len) in lens.enumerate() {
        let data: Vec<u8> = (0..len).map(|at| (number + at) as u8).collect();
        let sending = spawn({
            let (sender, data) = (sender.clone(), data.clone());
            async move { sender.send_one(data).await.0 }
        });
        assert_eq!(receive(&mut far, len).await, data, "message {number} of {len} bytes");
        sending.await.unwrap().unwrap();
    }
}

/// Takes `len` bytes, by turns into shared buffers and into memory of its own, of which it fills a part.
async fn receive_by_turns(half: &mut RecvHalf, len: usize) -> Vec<u8> {
    let mut got = Vec::new();
    let mut filled = 0;
    for turn in 0.. {
        if got.len() >= len {
            break;
        }
        if turn % 20 == 0 {
            got.extend_from_slice(&half.recv().await.unwrap());
            continue;
        }
        let range = turn % 7..(turn % 7 + 1 + turn * 1000).min(100_000);
        let (came, buf) = half.recv_into(IoBuf::zeroed(100_000), range.clone()).await;
        match came.unwrap() {
            Came::Buf(received) => got.extend_from_slice(&received),
            Came::Filled(bytes) => {
                filled += bytes;
                let end = range.start + bytes;
                assert!(end <= range.end);
                got.extend_from_slice(&buf[range.start..end]);
                assert!(buf[..range.start].iter().chain(&buf[end..]).all(|&byte| byte == 0), "only there");
            }
        }
    }
    assert!(filled > 100_000, "{filled} of {len} bytes came into the given memory");
    got
}

pub async fn given_memory_and_shared_buffers_by_turns_take_a_stream_in_order(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let near = Stream::connect(&addr).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let (mut half, _sender) = far.split();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 3 + at) as u8 | 1).collect();
    let sent = data.clone();
    let sending = spawn(async move {
        near.send_one(sent).await.0.unwrap();
        near
    });
    assert!(receive_by_turns(&mut half, data.len()).await == data);
    drop(sending.await.unwrap());
    for _ in 0..2 {
        let (came, _) = half.recv_into(IoBuf::zeroed(10), 0..10).await;
        assert!(matches!(came.unwrap(), Came::Filled(0)), "the end");
        assert!(half.recv().await.unwrap().is_empty());
    }
}

pub async fn a_receive_into_given_memory_that_is_dropped_loses_nothing(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let near = Stream::connect(&addr).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let (mut half, _sender) = far.split();
    let mut got = Vec::new();
    let mut sent = Vec::new();
    for round in 0..40u8 {
        let given = half.recv_into(IoBuf::zeroed(4096), 0..4096);
        if let Ok((came, buf)) = timeout(Duration::from_micros(u64::from(round) * 20), given).await {
            match came.unwrap() {
                Came::Buf(received) => got.extend_from_slice(&received),
                Came::Filled(bytes) => got.extend_from_slice(&buf[..bytes]),
            }
        }
        near.send_one(vec![round; 500]).await.0.unwrap();
        sent.extend_from_slice(&[round; 500]);
    }
    while got.len() < sent.len() {
        got.extend_from_slice(&half.recv().await.unwrap());
    }
    assert_eq!(got, sent);
}

/// Polls a future once and drops it.
async fn begin(future: impl Future) {
    let mut future = pin!(future);
    poll_fn(|context| {
        let _ = future.as_mut().poll(context);
        Poll::Ready(())
    })
    .await;
}

/// All begin to receive, and change to memory of their own, before the kernel hears of either: for most of them there is no shared
/// buffer when their cancellation comes.
pub async fn a_receive_that_finds_no_buffer_as_it_is_cancelled_has_not_failed(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for number in 0..place.many.min(700) {
        let (near, far) = (Stream::connect(&addr).await.unwrap(), listener.accept().await.unwrap().0);
        near.send_one(vec![number as u8]).await.0.unwrap();
        senders.push(near);
        receivers.push(far.split());
    }
    for (half, _) in &mut receivers {
        begin(half.recv()).await;
    }
    let mut receiving: Vec<_> =
        receivers.iter_mut().map(|(half, _)| Box::pin(half.recv_into(IoBuf::zeroed(8), 0..8))).collect();
    for receive in &mut receiving {
        begin(receive).await;
    }
    for (number, receive) in receiving.into_iter().enumerate() {
        let (came, buf) = timeout(PATIENCE, receive).await.expect("comes");
        let sent = [number as u8];
        match came.unwrap_or_else(|error| panic!("receive {number}: {error}")) {
            Came::Buf(received) => assert_eq!(*received, sent),
            Came::Filled(bytes) => assert_eq!(buf[..bytes], sent),
        }
    }
}

pub async fn sends_cancelled_in_flight_harm_nothing(place: Place) {
    let (listener, addr) = listen(&place.any_port).await;
    for round in 0..20u64 {
        let near = Stream::connect(&addr).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        let sending = spawn(async move { near.send_one(vec![1; 32 << 20]).await.0 });
        sleep(Duration::from_micros(round * 50)).await;
        sending.abort();
        drop(far);
    }
    serve_echo(listener);
    echo_at(&addr).await;
}
