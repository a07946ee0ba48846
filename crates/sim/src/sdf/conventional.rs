//! A conventional SSD of SDF's chips, for comparison: the drive decides where data goes.
//!
//! The same 44 channels and dies, below a page-mapped translation layer: logical pages of 8 KiB are striped over the
//! channels; writes are acknowledged from a DRAM buffer of 1 GiB, filled over a link of 1.4 GB/s; each channel appends
//! what it is given to its open block; when few blocks are free it collects the one with the fewest valid pages
//! (greedy). 30% of the raw space is over-provisioning (Huawei's Gen3 as the paper has it). No parity, no wear levelling,
//! no command overheads of writes.
//!
//! Reads are cut into their stripes and put together again. The paper blames that for what its conventional drive falls
//! short in reads; how long a stripe keeps the controller is no figure of it, so [`SPLIT_NS`] is set to what makes the drive
//! read 1.20 GB/s at most, as the paper's does (from memory of its Table 1). Without it (`split_ns` 0) the drive is as good
//! as its chips and its link.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use pumice_flash::{Access, BlockAddr, Device, Geometry};
use pumice_reactor::sync::{Notify, Semaphore};
use pumice_reactor::{IoBuf, Nanos, WriteSync, now, sleep_until, spawn};

const SPEC: &str = "emu:sdf,data=drop,link_read=0,link_write=0,request_us=0";
const OVER_PROVISIONED: f64 = 0.3;
const BUFFER_BYTES: u64 = 1 << 30;
const LINK_NS_PER_BYTE: f64 = 1.0 / 1.4;
const READ_LINK_NS_PER_BYTE: f64 = 1.0 / 1.61;
/// What the controller takes for a stripe of a read.
pub(super) const SPLIT_NS: u64 = 6827;
/// Reads of a channel under way: its two dies never idle.
const READS_MAX: u64 = 8;
/// Pages of 8 MiB.
const REQUEST_PAGES: u32 = 1024;
/// Pages that a channel programs at once: eight rows of its four planes.
const CHUNK_PAGES: u32 = 32;
/// Pages that the link carries before another request's get their turn.
const LINK_PAGES: u32 = 64;
/// Collection starts when so few blocks of a channel are free.
const FREE_MIN: usize = 2;
const NOWHERE: u32 = u32::MAX;

struct Channel {
    /// Logical pages that wait to be programmed.
    queue: VecDeque<u32>,
    free: VecDeque<u32>,
    open: u32,
    next_page: u32,
    /// Valid pages of each block.
    valid: Vec<u32>,
    /// Full blocks, which collection may choose.
    full: Vec<bool>,
}

struct State {
    channels: Vec<Channel>,
    /// Physical page of each logical one, and the reverse.
    place: Vec<u32>,
    owner: Vec<u32>,
    link_free: Nanos,
    read_link_free: Nanos,
    controller_free: Nanos,
    /// Pages of the host that were programmed, and pages that collection moved.
    host_pages: u64,
    moved_pages: u64,
    failure: Option<String>,
}

pub(super) struct Drive {
    device: Device,
    geometry: Geometry,
    logical_pages: u32,
    split_ns: u64,
    state: RefCell<State>,
    wakes: Vec<Notify>,
    /// Reads that a channel has under way; the others wait their turn.
    reading: Vec<Semaphore>,
    buffer: Semaphore,
    zeros: Bytes,
}

impl Drive {
    /// A new drive of so many blocks a channel.
    pub(super) async fn open(blocks: u32, split_ns: u64) -> Result<Rc<Self>, String> {
        let spec = format!("{SPEC},blocks={blocks}").parse().map_err(|error| format!("{error}"))?;
        let device = Device::open(&spec, Access::ReadWrite).await.map_err(|error| error.to_string())?;
        let geometry = device.geometry();
        let pages = geometry.block_count() * geometry.pages_per_block;
        let requests = (f64::from(pages) * (1.0 - OVER_PROVISIONED)) as u32 / REQUEST_PAGES;
        let channels = (0..geometry.channels).map(|_| Channel {
            queue: VecDeque::new(),
            free: (1..geometry.blocks_per_channel).collect(),
            open: 0,
            next_page: 0,
            valid: vec![0; geometry.blocks_per_channel as usize],
            full: vec![false; geometry.blocks_per_channel as usize],
        });
        let drive = Rc::new(Self {
            state: RefCell::new(State {
                channels: channels.collect(),
                place: vec![NOWHERE; (requests * REQUEST_PAGES) as usize],
                owner: vec![NOWHERE; pages as usize],
                link_free: now(),
                read_link_free: now(),
                controller_free: now(),
                host_pages: 0,
                moved_pages: 0,
                failure: None,
            }),
            wakes: (0..geometry.channels).map(|_| Notify::new()).collect(),
            reading: (0..geometry.channels).map(|_| Semaphore::new(READS_MAX)).collect(),
            buffer: Semaphore::new(BUFFER_BYTES / u64::from(geometry.page_bytes)),
            zeros: IoBuf::zeroed((CHUNK_PAGES * geometry.page_bytes) as usize).freeze(),
            logical_pages: requests * REQUEST_PAGES,
            split_ns,
            device,
            geometry,
        });
        for channel in 0..geometry.channels {
            let drive = Rc::clone(&drive);
            drop(spawn(async move {
                if let Err(error) = drive.flush(channel).await {
                    drive.state.borrow_mut().failure.get_or_insert(error);
                    // Nobody shall wait for a channel that stands still.
                    drive.buffer.release(u64::from(u32::MAX));
                }
            }));
        }
        Ok(drive)
    }

    /// Logical places of 8 MiB.
    pub(super) fn requests(&self) -> u32 {
        self.logical_pages / REQUEST_PAGES
    }

    /// Writes all of it once, in order, and waits until the buffer is empty.
    pub(super) async fn fill(&self) -> Result<(), String> {
        self.write(0, self.requests()).await?;
        drop(self.buffer.acquire(BUFFER_BYTES / u64::from(self.geometry.page_bytes)).await);
        Ok(())
    }

    /// Pages of the host that were programmed so far, and pages that were moved.
    pub(super) fn programmed(&self) -> (u64, u64) {
        let state = self.state.borrow();
        (state.host_pages, state.moved_pages)
    }

    /// Reads so many pages from this one on: done when the host has them all.
    pub(super) async fn read(self: &Rc<Self>, first: u32, count: u32) -> Result<(), String> {
        let pages: Vec<_> = (first..first + count)
            .map(|page| {
                let drive = Rc::clone(self);
                spawn(async move { drive.read_page(page).await })
            })
            .collect();
        for page in pages {
            page.await.map_err(|_| "a read went away".to_string())??;
        }
        Ok(())
    }

    async fn read_page(&self, page: u32) -> Result<(), String> {
        let (place, begins) = {
            let mut state = self.state.borrow_mut();
            state.controller_free = state.controller_free.max(now()) + Duration::from_nanos(self.split_ns);
            (state.place[page as usize], state.controller_free)
        };
        sleep_until(begins).await;
        let page_bytes = self.geometry.page_bytes;
        // What was never programmed is in the buffer.
        if place != NOWHERE {
            let block = place / self.geometry.pages_per_block;
            let channel = (block / self.geometry.blocks_per_channel) as u16;
            let block = BlockAddr { channel, block: block % self.geometry.blocks_per_channel };
            let _turn = self.reading[usize::from(channel)].acquire(1).await;
            let offset_bytes = place % self.geometry.pages_per_block * page_bytes;
            let read = self.device.read(block, offset_bytes, IoBuf::for_read(page_bytes as usize)).await.0;
            read.map_err(|error| error.to_string())?;
        }
        let carried = {
            let mut state = self.state.borrow_mut();
            let busy = Duration::from_nanos((f64::from(page_bytes) * READ_LINK_NS_PER_BYTE) as u64);
            state.read_link_free = state.read_link_free.max(now()) + busy;
            state.read_link_free
        };
        sleep_until(carried).await;
        Ok(())
    }

    /// Writes `count` times 8 MiB from this place on: done when all of it is in the buffer.
    pub(super) async fn write(&self, request: u32, count: u32) -> Result<(), String> {
        let first = request * REQUEST_PAGES;
        for from in (first..first + count * REQUEST_PAGES).step_by(LINK_PAGES as usize) {
            // Given back by whoever programs the pages.
            std::mem::forget(self.buffer.acquire(u64::from(LINK_PAGES)).await);
            let carried = {
                let mut state = self.state.borrow_mut();
                let bytes = f64::from(LINK_PAGES) * f64::from(self.geometry.page_bytes);
                let busy = Duration::from_nanos((bytes * LINK_NS_PER_BYTE) as u64);
                state.link_free = state.link_free.max(now()) + busy;
                state.link_free
            };
            sleep_until(carried).await;
            let mut state = self.state.borrow_mut();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            for page in from..from + LINK_PAGES {
                let channel = page as usize % state.channels.len();
                state.channels[channel].queue.push_back(page);
                self.wakes[channel].notify_one();
            }
        }
        Ok(())
    }

    /// One channel's work: programs what is queued, collects when it must.
    async fn flush(&self, channel: u16) -> Result<(), String> {
        let index = usize::from(channel);
        loop {
            let waiting = self.state.borrow().channels[index].queue.len();
            if waiting == 0 {
                self.wakes[index].notified().await;
                continue;
            }
            while self.state.borrow().channels[index].free.len() < FREE_MIN {
                self.collect(channel).await?;
            }
            let pages: Vec<u32> = {
                let mut state = self.state.borrow_mut();
                let queue = &mut state.channels[index].queue;
                let count = queue.len().min(CHUNK_PAGES as usize);
                queue.drain(..count).collect()
            };
            self.append(channel, &pages).await?;
            self.state.borrow_mut().host_pages += pages.len() as u64;
            self.buffer.release(pages.len() as u64);
        }
    }

    /// Programs logical pages to the open block, and the next.
    async fn append(&self, channel: u16, pages: &[u32]) -> Result<(), String> {
        let index = usize::from(channel);
        let mut left = pages;
        while !left.is_empty() {
            let (block, first) = {
                let mut state = self.state.borrow_mut();
                let found = &mut state.channels[index];
                if found.next_page == self.geometry.pages_per_block {
                    found.full[found.open as usize] = true;
                    found.open = found.free.pop_front().ok_or("no block is free to collect into")?;
                    found.next_page = 0;
                }
                (BlockAddr { channel, block: found.open }, found.next_page)
            };
            let count = left.len().min((self.geometry.pages_per_block - first) as usize);
            let data = self.zeros.slice(..count * self.geometry.page_bytes as usize);
            let programmed = self.device.program(block, first, data, WriteSync::Durable).await;
            programmed.map_err(|error| error.to_string())?;
            let mut state = self.state.borrow_mut();
            let state = &mut *state;
            state.channels[index].next_page += count as u32;
            for (at, &page) in left[..count].iter().enumerate() {
                let old = std::mem::replace(&mut state.place[page as usize], NOWHERE);
                if old != NOWHERE {
                    state.owner[old as usize] = NOWHERE;
                    let block = old / self.geometry.pages_per_block % self.geometry.blocks_per_channel;
                    state.channels[index].valid[block as usize] -= 1;
                }
                let new = self.physical(block, first + at as u32);
                state.place[page as usize] = new;
                state.owner[new as usize] = page;
                state.channels[index].valid[block.block as usize] += 1;
            }
            left = &left[count..];
        }
        Ok(())
    }

    /// Moves what is valid in the block with the least of it, and erases that.
    async fn collect(&self, channel: u16) -> Result<(), String> {
        let index = usize::from(channel);
        let victim = {
            let state = self.state.borrow();
            let found = &state.channels[index];
            let full = (0..found.valid.len()).filter(|&block| found.full[block]);
            full.min_by_key(|&block| found.valid[block]).ok_or("no block can be collected")? as u32
        };
        let block = BlockAddr { channel, block: victim };
        let rows: Vec<u32> = (0..self.geometry.pages_per_block).collect();
        for pages in rows.chunks(CHUNK_PAGES as usize) {
            let owners: Vec<(u32, u32)> = {
                let state = self.state.borrow();
                let owner = |page: &u32| (*page, state.owner[self.physical(block, *page) as usize]);
                pages.iter().map(owner).filter(|(_, owner)| *owner != NOWHERE).collect()
            };
            // Runs of pages are one read; the dies work side by side.
            let mut reads = Vec::new();
            for run in owners.chunk_by(|a, b| a.0 + 1 == b.0) {
                let (device, first, len) = (self.device.clone(), run[0].0, run.len() as u32);
                let page_bytes = self.geometry.page_bytes;
                reads.push(spawn(async move {
                    let buf = IoBuf::for_read((len * page_bytes) as usize);
                    device.read(block, first * page_bytes, buf).await.0
                }));
            }
            for read in reads {
                let result = read.await.map_err(|_| "a read went away".to_string())?;
                result.map_err(|error| error.to_string())?;
            }
            // What was overwritten meanwhile stays behind.
            let moved: Vec<u32> = {
                let state = self.state.borrow();
                let still =
                    |(page, owner): &&(u32, u32)| state.owner[self.physical(block, *page) as usize] == *owner;
                owners.iter().filter(still).map(|(_, owner)| *owner).collect()
            };
            self.append(channel, &moved).await?;
            self.state.borrow_mut().moved_pages += moved.len() as u64;
        }
        self.device.erase(block).await.map_err(|error| error.to_string())?;
        let mut state = self.state.borrow_mut();
        let found = &mut state.channels[index];
        found.full[victim as usize] = false;
        found.free.push_back(victim);
        Ok(())
    }

    fn physical(&self, block: BlockAddr, page: u32) -> u32 {
        (u32::from(block.channel) * self.geometry.blocks_per_channel + block.block)
            * self.geometry.pages_per_block
            + page
    }
}
