//! First signs of life on the real kernel.
#![allow(missing_docs)]

use bytes::Bytes;
use pumice_reactor::{
    Addr, Config, File, IoBuf, ListenOptions, Listener, OpenOptions, Stream, WriteSync, block_on, sleep,
    spawn, start,
};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_file_reads_back_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    block_on(async {
        let options = OpenOptions { create: true, direct: true, exclusive_lock: true, ..Default::default() };
        let file = File::open(&path, &options).await.unwrap();
        let second = File::open(&path, &options).await.unwrap_err();
        assert_eq!(second.kind(), std::io::ErrorKind::WouldBlock, "{second}");
        let mut buf = IoBuf::zeroed(8192);
        buf[..5].copy_from_slice(b"hello");
        file.write_at(buf.freeze(), 4096, WriteSync::Durable).await.unwrap();
        assert_eq!(file.len().await.unwrap(), 12288);
        let (read, buf) = file.read_at(IoBuf::for_read(16384), 4096).await;
        assert_eq!(read.unwrap(), 8192);
        assert_eq!(&buf[..5], b"hello");
        file.punch_hole(4096, 4096).await.unwrap();
        let (read, buf) = file.read_at(IoBuf::for_read(4096), 4096).await;
        assert_eq!(read.unwrap(), 4096);
        assert_eq!(buf[0], 0);
        file.sync_data().await.unwrap();
        assert!(file.write_at(Bytes::from_static(b"odd"), 0, WriteSync::Cached).await.is_err());
    });
}

#[test]
fn a_stream_echoes() {
    block_on(async {
        let listener =
            Listener::bind(&"127.0.0.1:0".parse().unwrap(), ListenOptions::default()).await.unwrap();
        let addr: Addr = listener.local_addr().clone();
        spawn(async move {
            let (mut stream, peer) = listener.accept().await.unwrap();
            assert!(peer.is_local());
            loop {
                let bytes = stream.recv().await.unwrap();
                if bytes.is_empty() {
                    break;
                }
                stream
                    .send(vec![
                        Bytes::from_static(b"<"),
                        Bytes::copy_from_slice(&bytes),
                        Bytes::from_static(b">"),
                    ])
                    .await
                    .unwrap();
            }
        });
        let mut stream = Stream::connect(&addr).await.unwrap();
        let (sent, _) = stream.send_one(b"ping".to_vec()).await;
        sent.unwrap();
        // A stream keeps no bounds: what was sent may come, and be sent back, in pieces.
        let mut echo: Vec<u8> = Vec::new();
        while echo.iter().filter(|byte| byte.is_ascii_lowercase()).count() < 4 || !echo.ends_with(b">") {
            let piece = stream.recv().await.unwrap();
            assert!(!piece.is_empty(), "the stream ended after {echo:?}");
            echo.extend_from_slice(&piece);
        }
        assert!(echo.starts_with(b"<") && echo.into_iter().filter(u8::is_ascii_lowercase).eq(*b"ping"));
        sleep(Duration::from_millis(5)).await;
    });
}

/// `docs/decisions/0048`: where few buffers are shared by many streams, receives wait for one, and wait no longer once one that was
/// kept is counted as such.
#[test]
fn receives_wait_for_shared_buffers_and_not_for_kept_ones() {
    const BYTES: usize = 256 << 10;
    let config = Config {
        cores: 1,
        small_receive_buffers: 2,
        receive_buffers: 2,
        receive_buffer_bytes: 8 << 10,
        ..Config::default()
    };
    start(&config, Arc::new(|_| Box::pin(wait_for_buffers()))).unwrap().join().unwrap();

    async fn wait_for_buffers() {
        let any = "127.0.0.1:0".parse().unwrap();
        let listener = Listener::bind(&any, ListenOptions::default()).await.unwrap();
        let addr = listener.local_addr().clone();
        let waits = || pumice_reactor::metrics::all_cores()[0].receive_waits;
        let mut streams = Vec::new();
        for _ in 0..12 {
            let near = Stream::connect(&addr).await.unwrap();
            streams.push(listener.accept().await.unwrap().0);
            spawn(async move { near.send_one(vec![3; BYTES]).await.0 });
        }
        let receivers: Vec<_> = streams
            .into_iter()
            .map(|mut stream| {
                spawn(async move {
                    let mut got = 0;
                    while got < BYTES {
                        got += stream.recv().await.unwrap().len();
                    }
                    stream
                })
            })
            .collect();
        let mut streams = Vec::new();
        for receiver in receivers {
            streams.push(receiver.await.unwrap());
        }
        assert!(waits() > 12, "{} receives waited", waits());

        // All buffers are kept from here on: who brings more goes on without them, most of the time at once.
        let mut kept = Vec::new();
        for _ in 0..2 {
            let near = Stream::connect(&addr).await.unwrap();
            let mut far = listener.accept().await.unwrap().0;
            near.send_one(vec![4; 100]).await.0.unwrap();
            kept.push((far.recv().await.unwrap(), far, near));
        }
        sleep(Duration::from_millis(50)).await;
        let before = waits();
        for _ in 0..50 {
            let near = Stream::connect(&addr).await.unwrap();
            let mut far = listener.accept().await.unwrap().0;
            near.send_one(vec![5; 100]).await.0.unwrap();
            assert_eq!(far.recv().await.unwrap().len(), 100);
        }
        let waited = waits() - before;
        assert!(waited < 25, "{waited} of 50 receives waited for buffers that are kept");
    }
}

/// `docs/decisions/0041`: many reads share a system call, few do not wait for one another.
#[test]
fn reads_are_handed_over_together_where_there_are_many() {
    const READS: u64 = 64;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    block_on(async {
        let file = File::open(&path, &OpenOptions { create: true, ..Default::default() }).await.unwrap();
        file.set_len(READS * 4096).await.unwrap();
        let enters = || pumice_reactor::metrics::all_cores()[0].enters;
        let before = enters();
        let reads: Vec<_> = (0..READS)
            .map(|number| {
                let file = file.clone();
                spawn(async move { file.read_at(IoBuf::for_read(4096), number * 4096).await.0.unwrap() })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await.unwrap(), 4096);
        }
        let together = enters() - before;
        assert!((2..=READS / 2).contains(&together), "{READS} reads took {together} calls");
    });
}
