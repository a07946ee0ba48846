//! A key that another client renames while a read of it waits for flash: the read answers what the key held at some time.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::common::{self, Setup, TestServer, open};
use pumice_base::hash::stable_hash64;
use pumice_kv::Turn;
use pumice_node::NodeBatch;
use pumice_redis::context::Ctx;
use pumice_redis::keyspace::{Space, Type, element_key, head_prefix};
use pumice_redis::server::Server;

/// The field of the hash's element `f`.
fn field() -> Vec<u8> {
    let hash = (stable_hash64(0, b"f") >> 32) as u32;
    [&hash.to_be_bytes()[..], b"f"].concat()
}

#[test]
fn a_field_is_told_that_the_key_held() {
    let server = TestServer::start();
    server.client().line("HSET k f old");
    server.client().line(&common::keys_before_k());
    let dir = server.into_dir();
    let setup = Setup::default();
    let head = |key: &[u8]| [&head_prefix(Space(1))[..], key].concat();
    pumice_reactor::block_on(async move {
        let node = open(&setup, dir.path()).await;
        let place = node.place(b"k");
        let stored = node.get(place, &head(b"k")).await.expect("read").expect("a head");
        let id = u64::from_le_bytes(stored.value[..8].try_into().expect("an id"));
        node.close().await.expect("closed");
        drop(node);
        // Opened anew nothing of it is in memory: others lie where scans begin, and none in a slice that says of which set its drive is.
        let node = open(&setup, dir.path()).await;
        let server = Arc::new(Server::new(setup.options.clone()).expect("a server"));
        server.attach(node.clone()).await.expect("attached");
        let mut reader = Ctx::for_service(server);
        let field = field();
        let found = {
            let mut reading = pin!(reader.read_element(b"k", Type::Hash, 0, &field));
            let first = poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
            assert!(first.is_pending(), "the head is read from flash");
            // RENAME k b, HSET b f new: both keys lie in one slice here, which makes no difference.
            let mut batch = NodeBatch::new();
            batch.delete(place, &head(b"k"));
            batch.put(place, &head(b"b"), stored.tag, 0, &stored.value);
            batch.put(place, &element_key(Space(1), id, 0, &field), stored.tag, 0, b"new");
            node.write_in(&batch, &mut Turn::default()).expect("written");
            reading.await
        };
        let found = found.map_err(|failure| failure.lossy().to_string()).expect("an answer");
        let found = found.map(|(_, entry)| entry.value);
        assert_eq!(found, None, "of k, which was gone, or what it held before; it never held that");
        drop(reader);
        node.close().await.expect("closed");
    });
}
