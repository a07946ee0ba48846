//! What the worlds share that cut commands of a Redis server in the middle: a server and one client, whose drives are set
//! back to an image before each run, and what must not be left on the drives.

use std::collections::BTreeSet;
use std::io;
use std::ops::Bound;
use std::time::Duration;

use bytes::Bytes;
use pumice_kv::{Direction, SliceId, SliceSet, Want};
use pumice_node::Node;
use pumice_reactor::sim::{DiskImage, HostId, HostOptions, World};
use pumice_reactor::{Addr, sleep};
use pumice_redis::keyspace::{RECORD_DRIVE, SYSTEM_SPACE, StoredSpaces, Type, space_of};

use super::resp::{Connection, Reply, encode};
use super::served::{PORT, SERVING_CORES, Setup, boot, format, open_node};

/// A command's words.
pub(super) type Command = Vec<Vec<u8>>;

pub(super) fn words(line: &str) -> Command {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

pub(super) async fn call(connection: &mut Connection, command: &[Vec<u8>]) -> io::Result<Reply> {
    let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
    connection.call(&words).await
}

/// Connects once the server has opened its drives.
pub(super) async fn connect(addr: Addr) -> Result<Connection, String> {
    for _ in 0..1000 {
        if let Ok(mut connection) = Connection::open(&addr).await
            && matches!(call(&mut connection, &words("EXISTS a")).await, Ok(Reply::Integer(_)))
        {
            return Ok(connection);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err("the server does not come up".into())
}

/// Commands one after another, none of which may be refused.
pub(super) async fn prepare(addr: Addr, commands: Vec<Command>) -> Result<(), String> {
    let mut connection = connect(addr).await?;
    for command in commands {
        match call(&mut connection, &command).await.map_err(|error| error.to_string())? {
            Reply::Error(why) => return Err(why),
            _ => continue,
        }
    }
    Ok(())
}

/// The replies to commands that are sent at once.
pub(super) async fn look(addr: Addr, reads: &[&str]) -> Result<Vec<Reply>, String> {
    let mut connection = connect(addr).await?;
    let mut out = Vec::new();
    for line in reads {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        encode(&words, &mut out);
    }
    connection.send(out).await.map_err(|error| error.to_string())?;
    let mut replies = Vec::new();
    for _ in reads {
        replies.push(connection.receive().await.map_err(|error| error.to_string())?);
    }
    Ok(replies)
}

/// Keys that nobody can reach and nothing will remove, one line each: elements under an id that no head of their drive names, and
/// whatever lies in a space that no database is in. What is retired is left out.
pub(super) async fn leftovers(node: &Node) -> Result<Vec<String>, String> {
    let spaces = StoredSpaces::read(node.store(RECORD_DRIVE)).await?.spaces;
    let mut left = Vec::new();
    for drive in 0..node.drive_count() {
        let (mut named, mut found) = (BTreeSet::new(), BTreeSet::new());
        let store = node.store(drive);
        let snapshot = store.snapshot();
        for slice in (0..store.slice_count()).map(SliceId) {
            let (lower, upper) = (Bound::<Bytes>::Unbounded, Bound::<Bytes>::Unbounded);
            let only = SliceSet::One(slice);
            let mut scan = store.scan(&snapshot, only, lower, upper, Direction::Forward, Want::Values);
            while let Some((key, entry)) = scan.next().await.map_err(|error| error.to_string())? {
                // The last is the set's own.
                let is_own = space_of(&key) == SYSTEM_SPACE || key.starts_with(&[0xFF; 4]);
                if is_own || store.is_retired(slice, &key) {
                    continue;
                }
                if spaces.database_of(space_of(&key)).is_none() {
                    left.push(format!("drive {drive}: {:?} in a space of no database", key));
                }
                let id = |bytes: &[u8]| bytes.first_chunk::<8>().copied();
                match key.get(4) {
                    Some(0) if !Type::is_string(entry.tag) => {
                        named.extend(id(&entry.value).map(u64::from_le_bytes));
                    }
                    Some(1) => found.extend(key.get(5..).and_then(id).map(u64::from_be_bytes)),
                    _ => {}
                }
            }
        }
        let nobodys = found.difference(&named);
        left.extend(nobodys.map(|id| format!("drive {drive}: elements of {id}, which no key names")));
    }
    Ok(left)
}

pub(super) struct Stage {
    pub world: World,
    pub server: HostId,
    pub client: HostId,
    pub addr: Addr,
    pub setup: Setup,
}

impl Stage {
    /// Drives that are empty, and a server that has opened them.
    pub fn new(setup: Setup) -> Result<Self, String> {
        let world = World::new(setup.seed);
        let host = |name: &str, cores| HostOptions {
            name: name.into(),
            cores,
            quirks: false,
            ..HostOptions::default()
        };
        let server = world.add_host(host("server", usize::from(SERVING_CORES) + 1));
        let client = world.add_host(host("client", 1));
        let addr = world.addr(server, PORT);
        let stage = Self { world, server, client, addr, setup };
        let formatted = stage.world.block_on(server, format(setup.drives, setup.channels));
        formatted.map_err(|halt| format!("format: {halt}"))??;
        stage.boot();
        Ok(stage)
    }

    pub fn boot(&self) {
        boot(&self.world, self.server, self.setup);
    }

    /// The server is killed where it runs, and started on its drives as they are, or as `image` has them.
    pub fn boot_again(&self, image: Option<&DiskImage>) {
        self.stop(image);
        self.boot();
    }

    fn stop(&self, image: Option<&DiskImage>) {
        if self.world.is_up(self.server) {
            self.world.kill(self.server);
        }
        if let Some(image) = image {
            self.world.set_disk(self.server, image);
        }
        self.world.restart(self.server);
    }

    /// What a client on a host of its own comes to.
    pub fn client<T: 'static>(
        &self,
        work: impl Future<Output = Result<T, String>> + 'static,
    ) -> Result<T, String> {
        self.world.block_on(self.client, work).map_err(|halt| format!("the client: {halt}"))?
    }

    /// Kills the server and looks at its drives: what is left that nobody can reach is an error, as is, with `check`, what is
    /// not sound.
    pub fn look_at_drives(&self, check: bool) -> Result<(), String> {
        self.stop(None);
        let setup = self.setup;
        let looked = self.world.block_on(self.server, async move {
            let node = open_node(setup).await;
            let left = leftovers(&node).await?;
            if !left.is_empty() {
                return Err(format!("left behind: {}", left.join("; ")));
            }
            for drive in (0..node.drive_count()).filter(|_| check) {
                let checked = node.store(drive).check(&|_, _| {}).await.map_err(|error| error.to_string())?;
                if !checked.is_clean() {
                    return Err(format!("drive {drive}: {}", checked.problems.join("; ")));
                }
            }
            Ok(())
        });
        looked.map_err(|halt| format!("looking at the drives: {halt}"))?
    }
}
