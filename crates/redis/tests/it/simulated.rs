//! A server in the simulator, for what takes a drive's faults and time: clients on another host, virtual time.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use pumice_flash::{Access, Device, DeviceSpec};
use pumice_kv::{Store, StoreFormat};
use pumice_node::{Node, NodeOptions};
use pumice_reactor::sim::{HostId, HostOptions, World};
use pumice_reactor::{Addr, CoreId, Stream, spawn, spawn_on};
use pumice_redis::face;
use pumice_redis::options::Options;
use pumice_redis::server::Server;

const PORT: u16 = 6379;
const DRIVE_BYTES: u64 = 64 << 20;
const SEGMENT_BYTES: u32 = 512 << 10;

fn spec() -> DeviceSpec {
    DeviceSpec::Path(PathBuf::from("/drive"))
}

/// The server, and the drive that it serves.
type Serving = (Arc<Server>, Node);

/// A host that serves one drive, and one that its clients are on.
pub struct Stage {
    pub world: World,
    pub server: HostId,
    client: HostId,
    addr: Addr,
    options: Options,
    serving: Rc<RefCell<Option<Serving>>>,
}

impl Stage {
    pub fn start(options: Options) -> Self {
        let world = World::new(1);
        let host = |name: &str, cores| HostOptions {
            name: name.into(),
            cores,
            quirks: false,
            ..HostOptions::default()
        };
        let (server, client) = (world.add_host(host("server", 2)), world.add_host(host("client", 1)));
        let addr = world.addr(server, PORT);
        let options = Options { protected_mode: false, ..options };
        let stage = Self { world, server, client, addr, options, serving: Rc::default() };
        stage.on(server, async {
            let device = Device::create(&spec(), DRIVE_BYTES).await.expect("a device");
            let segment_bytes = Some(SEGMENT_BYTES);
            let format = StoreFormat { drive_id: [1; 16], segment_bytes, ..StoreFormat::default() };
            Store::format(&device, &format).await.expect("formatted");
        });
        stage.serve();
        stage
    }

    /// Begins to serve the drive.
    pub fn serve(&self) {
        let (options, serving) = (self.options.clone(), self.serving.clone());
        self.on(self.server, async move {
            let server = Arc::new(Server::new(options).expect("a server"));
            let addr: Addr = format!("0.0.0.0:{PORT}").parse().expect("an address");
            spawn(face::bind(&server, &addr).await.expect("bound").run());
            let device = Device::open(&spec(), Access::ReadWrite).await.expect("a device");
            let options = NodeOptions { set_id: [7; 16], ..NodeOptions::default() };
            let node =
                Node::open(vec![("drive".into(), device)], &options, &|_, _| {}).await.expect("opened");
            let background = node.clone();
            spawn_on(CoreId(1), move || Box::pin(async move { background.start_background() }));
            server.attach(node.clone()).await.expect("attached");
            spawn(face::keep_house(server.clone()));
            *serving.borrow_mut() = Some((server, node));
        });
    }

    /// Places of the log of which opening said that they are lost.
    pub fn lost_places(&self) -> usize {
        let serving = self.serving.borrow();
        let (_, node) = serving.as_ref().expect("it serves");
        node.recovered().iter().map(|drive| drive.damage.len()).sum()
    }

    /// How many sorted sets have their order counted in memory, and how often one was.
    pub fn counted_orders(&self) -> (usize, u64) {
        let serving = self.serving.borrow();
        let (server, _) = serving.as_ref().expect("it serves");
        let counted = server.ranks.counted();
        (counted.orders, counted.times)
    }

    /// Stops serving, and begins anew: what was in memory is on the drive alone.
    pub fn restart(&self) {
        self.close();
        self.world.kill(self.server);
        self.world.restart(self.server);
        self.serve();
    }

    /// Stops serving.
    pub fn close(&self) {
        let (server, node) = self.serving.take().expect("it serves");
        self.on(self.server, async move {
            face::stop(&server).await;
            node.close().await.expect("closed");
        });
    }

    /// What clients do.
    pub fn play<T: 'static>(&self, play: impl AsyncFnOnce(Clients) -> T + 'static) -> T {
        let clients = Clients(self.addr.clone());
        self.on(self.client, async move { play(clients).await })
    }

    fn on<T: 'static>(&self, host: HostId, work: impl Future<Output = T> + 'static) -> T {
        self.world.block_on(host, work).unwrap_or_else(|halt| panic!("{halt}"))
    }
}

/// Where clients connect to.
pub struct Clients(Addr);

impl Clients {
    pub async fn connect(&self) -> SimClient {
        SimClient { stream: Stream::connect(&self.0).await.expect("connected"), input: Vec::new() }
    }
}

/// A connection that shows what comes byte by byte.
pub struct SimClient {
    stream: Stream,
    input: Vec<u8>,
}

impl SimClient {
    pub async fn send(&mut self, commands: Vec<u8>) {
        self.stream.send_one(commands).await.0.expect("sent");
    }

    /// Sends words separated by spaces; the first line of what comes.
    pub async fn line(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").into_bytes()).await;
        self.read_line().await
    }

    pub async fn read_line(&mut self) -> String {
        loop {
            if let Some(end) = self.input.windows(2).position(|pair| pair == b"\r\n") {
                let line = self.input.drain(..end + 2).take(end).collect();
                return String::from_utf8(line).expect("text");
            }
            assert!(self.receive().await.expect("a line") > 0, "closed in the midst of a line");
        }
    }

    /// Takes what has come, or waits for more; how much there is.
    pub async fn receive(&mut self) -> io::Result<usize> {
        let came = self.stream.recv().await?;
        self.input.extend_from_slice(&came);
        Ok(came.len())
    }

    /// Everything until the server closes.
    pub async fn read_to_end(mut self) -> Vec<u8> {
        while self.receive().await.is_ok_and(|came| came > 0) {}
        self.input
    }
}
