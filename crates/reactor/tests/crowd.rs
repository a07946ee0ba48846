//! Ten thousand connections at once, most of them idle.
//! Alone in a program of its own: it takes nearly all files that the process may open, and others would find none.

use pumice_reactor::{ListenOptions, Listener, Stream, block_on, metrics, raise_open_files_limit, spawn};

#[test]
fn ten_thousand_idle_connections_cost_no_buffers() {
    let limit = raise_open_files_limit().expect("the limit is known");
    // Both ends are here.
    let count = 10_000.min(limit.saturating_sub(200) / 2);
    block_on(async move {
        let listener =
            Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
        let addr = listener.local_addr().clone();
        spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                spawn(async move {
                    while let Ok(bytes) = stream.recv().await {
                        let bytes = bytes.to_vec();
                        if bytes.is_empty() || stream.send_one(bytes).await.0.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let mut streams = Vec::new();
        for _ in 0..count {
            streams.push(Stream::connect(&addr).await.unwrap());
        }
        let before = metrics::all_cores()[0];
        for stream in streams.iter_mut().rev().step_by(10) {
            stream.send_one(b"still there?".to_vec()).await.0.unwrap();
            assert_eq!(&*stream.recv().await.unwrap(), b"still there?");
        }
        let after = metrics::all_cores()[0];
        let answers = count.div_ceil(10);
        assert_eq!(
            after.receives - before.receives,
            2 * answers,
            "one receive for each message, at each end"
        );
    });
}
