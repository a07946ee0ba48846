//! The workloads against a Redis server: `connections` clients, each `pipeline` commands deep.
//!
//! LightStore's workloads are SET and GET. YCSB's records are hashes of ten fields with a sorted set as index,
//! as its own Redis binding stores them; a scan asks the index for a range and reads that many records.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pumice_base::rng::Rng;
use pumice_base::sync::lock;
use pumice_reactor::{Addr, Nanos, Stream, now, spawn};

use super::keys::{Values, key_of};
use super::replies::Replies;
use super::report::{Cost, Tally};
use super::workload::{Op, Stream as Ops, Workload};
use crate::exit::Stop;
use crate::wire;

/// Fields of a YCSB record.
const FIELDS: usize = 10;
/// The sorted set that YCSB's scans use.
const INDEX: &[u8] = b"_indices";

/// How to run.
#[derive(Clone)]
pub struct Plan {
    pub addr: Addr,
    pub password: Option<String>,
    pub connections: u32,
    pub pipeline: u32,
    pub cores: u16,
    pub keys: u64,
    pub ops: u64,
    pub seconds: Option<f64>,
    pub values: Values,
    pub distribution: Option<crate::cli::Distribution>,
    pub seed: u64,
}

/// Runs `workload`; answers the counts and the seconds it took.
pub fn run(plan: &Plan, workload: &Workload) -> Result<(Tally, f64), Stop> {
    let total: Arc<Mutex<(Tally, u64)>> = Arc::default();
    let (plan, workload) = (plan.clone(), *workload);
    let cores = u32::from(plan.cores).min(plan.connections).max(1);
    let config = pumice_reactor::Config {
        cores: cores as usize,
        registered_buffer_bytes: 0,
        ..pumice_reactor::Config::default()
    };
    let sum = total.clone();
    let running = pumice_reactor::start(
        &config,
        Arc::new(move |core| {
            let (plan, sum) = (plan.clone(), sum.clone());
            Box::pin(async move {
                let mine: Rc<RefCell<Tally>> = Rc::default();
                let started = now();
                let clients: Vec<_> = (0..plan.connections)
                    .filter(|client| client % cores == u32::from(core.0))
                    .map(|client| spawn(run_client(plan.clone(), workload, client, started, mine.clone())))
                    .collect();
                for client in clients {
                    let _ = client.await;
                }
                let mut sum = lock(&sum);
                sum.0.merge(&mine.borrow());
                sum.1 = sum.1.max(now().since(started).as_nanos() as u64);
            })
        }),
    )
    .map_err(|e| Stop::doing("starting the load", e))?;
    running.join().map_err(|e| Stop::doing("running the load", e))?;
    let total = lock(&total);
    Ok((total.0.clone(), total.1 as f64 / 1e9))
}

async fn run_client(plan: Plan, workload: Workload, client: u32, started: Nanos, tally: Rc<RefCell<Tally>>) {
    let share = plan.ops / u64::from(plan.connections)
        + u64::from(u64::from(client) < plan.ops % u64::from(plan.connections));
    let ops = workload.stream(
        plan.keys,
        plan.distribution,
        u64::from(client),
        u64::from(plan.connections),
        plan.seed,
    );
    let deadline = plan.seconds.map(|s| Nanos(started.0 + Duration::from_secs_f64(s).as_nanos() as u64));
    let mut run = match Client::connect(&plan, workload.is_ycsb).await {
        Ok(run) => run,
        Err(error) => return tally.borrow_mut().failed(format!("connecting to {}: {error}", plan.addr)),
    };
    if let Err(error) = run.go(ops, share, deadline, started, &plan, &tally).await {
        tally.borrow_mut().failed(error);
    }
}

struct Client {
    stream: Stream,
    replies: Replies,
    out: Vec<u8>,
    values: Values,
    is_ycsb: bool,
    written_bytes: u64,
}

impl Client {
    async fn connect(plan: &Plan, is_ycsb: bool) -> Result<Self, String> {
        let stream = Stream::connect(&plan.addr).await.map_err(|e| e.to_string())?;
        let mut client = Self {
            stream,
            replies: Replies::default(),
            out: Vec::new(),
            values: plan.values.clone(),
            is_ycsb,
            written_bytes: 0,
        };
        if let Some(password) = &plan.password {
            wire::command(&mut client.out, &[b"AUTH", password.as_bytes()]);
            client.exchange(1).await?;
            if let Some(error) = client.replies.first_error.take() {
                return Err(error);
            }
        }
        Ok(client)
    }

    async fn go(
        &mut self,
        mut ops: Ops,
        share: u64,
        deadline: Option<Nanos>,
        started: Nanos,
        plan: &Plan,
        tally: &RefCell<Tally>,
    ) -> Result<(), String> {
        let mut left = share;
        let mut second = Vec::new();
        while left > 0 && deadline.is_none_or(|d| now() < d) {
            let batch = left.min(u64::from(plan.pipeline));
            left -= batch;
            second.clear();
            let before =
                (self.replies.nulls, self.replies.errors, self.replies.bulk_bytes, self.written_bytes);
            let mut expected = 0;
            for _ in 0..batch {
                let op = ops.next_op();
                expected += self.first_half(op, &mut second, ops.rng());
            }
            let sent = now();
            self.exchange(expected).await?;
            if !second.is_empty() {
                for &index in &second {
                    self.update(index, ops.rng());
                }
                self.exchange(second.len() as u64).await?;
            }
            let done = now();
            let mut tally = tally.borrow_mut();
            tally.done(batch, done.since(sent).as_nanos() as u64, done.since(started).as_nanos() as u64);
            tally.misses += self.replies.nulls - before.0;
            tally.read_bytes += self.replies.bulk_bytes - before.2;
            tally.written_bytes += self.written_bytes - before.3;
            if self.replies.errors > before.1 {
                tally.errors += self.replies.errors - before.1;
                if tally.first_error.is_none() {
                    tally.first_error.clone_from(&self.replies.first_error);
                }
            }
        }
        Ok(())
    }

    /// Appends the commands of `op` that need no earlier reply; answers how many replies they bring.
    fn first_half(&mut self, op: Op, second: &mut Vec<u64>, rng: &mut Rng) -> u64 {
        match op {
            Op::Get(index) => self.read(index),
            Op::Set(index) if self.is_ycsb => self.update(index, rng),
            Op::Set(index) | Op::Insert(index) if !self.is_ycsb => self.set(index, rng),
            Op::Set(index) | Op::Insert(index) => self.insert(index, rng),
            Op::ReadModifyWrite(index) => {
                second.push(index);
                self.read(index)
            }
            Op::Scan(index, len) => {
                let (from, count) = (index.to_string(), len.to_string());
                let range: &[&[u8]] =
                    &[b"ZRANGEBYSCORE", INDEX, from.as_bytes(), b"+inf", b"LIMIT", b"0", count.as_bytes()];
                wire::command(&mut self.out, range);
                1 + (index..index + u64::from(len)).map(|i| self.read(i)).sum::<u64>()
            }
        }
    }

    /// YCSB's records are hashes: they have names of their own beside LightStore's strings.
    fn key(&self, index: u64) -> [u8; 16] {
        let mut key = key_of(index);
        if self.is_ycsb {
            key[0] = b'u';
        }
        key
    }

    fn read(&mut self, index: u64) -> u64 {
        let verb: &[u8] = if self.is_ycsb { b"HGETALL" } else { b"GET" };
        let key = self.key(index);
        wire::command(&mut self.out, &[verb, &key]);
        1
    }

    fn set(&mut self, index: u64, rng: &mut Rng) -> u64 {
        let len = self.values.len();
        wire::head(&mut self.out, 3);
        wire::bulk(&mut self.out, b"SET");
        let key = self.key(index);
        wire::bulk(&mut self.out, &key);
        wire::bulk_head(&mut self.out, len);
        self.values.fill(index, rng, &mut self.out);
        self.out.extend_from_slice(b"\r\n");
        self.written_bytes += len as u64 + 16;
        1
    }

    fn field(&mut self, field: usize, index: u64, rng: &mut Rng) {
        wire::bulk(&mut self.out, &[b"field", &[b'0' + field as u8][..]].concat());
        let at = self.out.len();
        let mut value = Vec::new();
        self.values.fill(index, rng, &mut value);
        value.truncate((self.values.len() / FIELDS).max(1));
        wire::bulk(&mut self.out, &value);
        self.written_bytes += (self.out.len() - at) as u64;
    }

    fn update(&mut self, index: u64, rng: &mut Rng) -> u64 {
        wire::head(&mut self.out, 4);
        wire::bulk(&mut self.out, b"HSET");
        let key = self.key(index);
        wire::bulk(&mut self.out, &key);
        let field = rng.below(FIELDS as u64) as usize;
        self.field(field, index, rng);
        1
    }

    fn insert(&mut self, index: u64, rng: &mut Rng) -> u64 {
        wire::head(&mut self.out, 2 + 2 * FIELDS);
        wire::bulk(&mut self.out, b"HSET");
        let key = self.key(index);
        wire::bulk(&mut self.out, &key);
        for field in 0..FIELDS {
            self.field(field, index, rng);
        }
        let score = index.to_string();
        wire::command(&mut self.out, &[b"ZADD", INDEX, score.as_bytes(), &key]);
        2
    }

    async fn exchange(&mut self, expected: u64) -> Result<(), String> {
        let goal = self.replies.whole + expected;
        let (sent, out) = self.stream.send_one(std::mem::take(&mut self.out)).await;
        self.out = out;
        self.out.clear();
        sent.map_err(|e| format!("sending: {e}"))?;
        while self.replies.whole < goal {
            let bytes = self.stream.recv().await.map_err(|e| format!("receiving: {e}"))?;
            if bytes.is_empty() {
                return Err("the server closed the connection".into());
            }
            self.replies.feed(&bytes)?;
        }
        Ok(())
    }
}

/// What the server has used so far, as far as its INFO says.
pub fn cost(addr: &Addr, password: Option<&str>) -> Result<Cost, Stop> {
    const TLS_ADVICE: &str = "bench does not; measure through an address of the server without TLS (of `pumice serve`, a Unix \
                              socket is one: `--redis unix:PATH`)";
    let info = wire::info(addr, password, TLS_ADVICE)?;
    let number =
        |name: &str| info.iter().find(|(key, _)| key == name).and_then(|(_, v)| v.parse::<f64>().ok());
    Ok(Cost {
        cpu_seconds: number("used_cpu_user").unwrap_or(0.0) + number("used_cpu_sys").unwrap_or(0.0),
        flash_read_bytes: number("flash_read_bytes").unwrap_or(0.0) as u64,
        flash_written_bytes: number("flash_written_bytes").unwrap_or(0.0) as u64,
    })
}
