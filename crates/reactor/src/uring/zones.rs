//! Zone commands. Linux has ioctls for them and io_uring has none, and a reset takes milliseconds: a thread of its own
//! carries them out for a core, started by the first and ended with the ring. Rejected: calling them on the core,
//! whose clients would wait for a drive's erases.

use super::sys::EventFd;
use crate::driver::{Completion, Handle, Kick, Outcome, Token};
use crate::zones::{RawZone, SECTOR_BYTES, Zone, ZoneAction, ZonedInfo};
use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, mpsc};

use pumice_base::sync::lock;

/// Says that a report fills in the capacity.
const REPORT_CAPACITY: u32 = 1;
/// Zones of one report, at most: 256 KiB of memory.
const REPORT_ZONES_MAX: u32 = 4096;
/// The letter of the block layer's ioctls.
const BLOCK: u32 = 0x12;

/// `struct blk_zone_report` without its zones.
#[repr(C)]
struct ReportHead {
    sector: u64,
    zones: u32,
    flags: u32,
}

/// `struct blk_zone_range`.
#[repr(C)]
struct RawRange {
    sector: u64,
    sectors: u64,
}

const _: () = assert!(size_of::<ReportHead>() == 16 && size_of::<RawZone>() == 64);

/// What is asked.
pub(super) enum Request {
    Report { from: u64, zones_max: u32 },
    Manage { action: ZoneAction, start: u64, bytes: u64 },
}

enum Answer {
    Zones(io::Result<Vec<Zone>>),
    Done(io::Result<()>),
}

struct Job {
    token: Token,
    file: Handle,
    request: Request,
}

/// The thread, and what it has done.
#[derive(Default)]
pub(super) struct ZoneThread {
    /// Something was asked for: spares all other cores a lock a turn.
    is_used: bool,
    jobs: Option<mpsc::Sender<Job>>,
    done: Arc<Mutex<Vec<(Token, Answer)>>>,
}

impl ZoneThread {
    /// Hands a request over; its completion comes with the kick. The queue is bounded by the operations in flight,
    /// each of which its task awaits.
    pub(super) fn submit(&mut self, kick: &Arc<EventFd>, token: Token, file: Handle, request: Request) {
        self.is_used = true;
        let mut job = Job { token, file, request };
        if self.jobs.is_none() {
            self.jobs = self.start(kick).ok();
        }
        if let Some(jobs) = &self.jobs {
            match jobs.send(job) {
                Ok(()) => return,
                Err(mpsc::SendError(back)) => job = back,
            }
        }
        let error = || io::Error::other("no thread for zone commands can be started");
        let answer = match job.request {
            Request::Report { .. } => Answer::Zones(Err(error())),
            Request::Manage { .. } => Answer::Done(Err(error())),
        };
        lock(&self.done).push((token, answer));
        kick.kick();
    }

    fn start(&self, kick: &Arc<EventFd>) -> io::Result<mpsc::Sender<Job>> {
        let (sender, jobs) = mpsc::channel::<Job>();
        let (kick, done) = (Arc::clone(kick), Arc::clone(&self.done));
        // Nobody joins it: it ends with its last job once the ring is gone.
        std::thread::Builder::new().name("zones".into()).spawn(move || {
            for Job { token, file, request } in jobs {
                let answer = match request {
                    Request::Report { from, zones_max } => Answer::Zones(report(file.fd(), from, zones_max)),
                    Request::Manage { action, start, bytes } => {
                        Answer::Done(manage(file.fd(), action, start, bytes))
                    }
                };
                drop(file);
                lock(&done).push((token, answer));
                kick.kick();
            }
        })?;
        Ok(sender)
    }

    /// Appends what has been done. To be called after the kick was taken: the answer precedes it.
    pub(super) fn reap(&self, out: &mut Vec<Completion>) {
        if !self.is_used {
            return;
        }
        let done = std::mem::take(&mut *lock(&self.done));
        out.extend(done.into_iter().map(|(token, answer)| {
            let outcome = match answer {
                Answer::Zones(result) => Outcome::Zones(result),
                Answer::Done(result) => Outcome::Done(result.map(|()| 0)),
            };
            Completion { token, outcome, more: false }
        }));
    }
}

fn report(fd: RawFd, from: u64, zones_max: u32) -> io::Result<Vec<Zone>> {
    const UNITS: usize = size_of::<RawZone>() / size_of::<u64>();
    const HEAD_UNITS: usize = size_of::<ReportHead>() / size_of::<u64>();
    let zones = zones_max.clamp(1, REPORT_ZONES_MAX);
    let mut memory = vec![0u64; HEAD_UNITS + zones as usize * UNITS];
    let head = ReportHead { sector: from / SECTOR_BYTES, zones, flags: 0 };
    let address = memory.as_mut_ptr();
    // SAFETY: the memory is aligned for the head and has room for it.
    unsafe { address.cast::<ReportHead>().write(head) };
    // SAFETY: the kernel reads the head and writes at most `zones` zones behind it, for which there is room.
    let result = unsafe { libc::ioctl(fd, libc::_IOWR::<ReportHead>(BLOCK, 130), address) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: still the head, which the kernel may have changed.
    let head = unsafe { address.cast::<ReportHead>().read() };
    let filled = head.zones.min(zones) as usize;
    let has_capacity = head.flags & REPORT_CAPACITY != 0;
    (0..filled)
        .map(|index| {
            // SAFETY: inside the memory, whose units align it, and plain numbers whatever they are.
            let raw = unsafe { address.add(HEAD_UNITS + index * UNITS).cast::<RawZone>().read() };
            raw.decode(has_capacity)
        })
        .collect()
}

fn manage(fd: RawFd, action: ZoneAction, start: u64, bytes: u64) -> io::Result<()> {
    let number = match action {
        ZoneAction::Reset => 131,
        ZoneAction::Open => 134,
        ZoneAction::Close => 135,
        ZoneAction::Finish => 136,
    };
    let range = RawRange { sector: start / SECTOR_BYTES, sectors: bytes / SECTOR_BYTES };
    // SAFETY: the kernel reads one range.
    let result = unsafe { libc::ioctl(fd, libc::_IOW::<RawRange>(BLOCK, number), &raw const range) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What sysfs says of the block device `major:minor`; nothing when its zones need no care.
pub(super) fn zoned_info(major: u32, minor: u32) -> Option<ZonedInfo> {
    let device = format!("/sys/dev/block/{major}:{minor}");
    let read = |name: &str| std::fs::read_to_string(format!("{device}/queue/{name}")).ok();
    // A partition has no queue of its own, and Linux makes none on host-managed drives.
    if read("zoned")?.trim() != "host-managed" {
        return None;
    }
    let number = |name: &str| read(name).and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0);
    let limit = |name: &str| u32::try_from(number(name)).unwrap_or(0);
    Some(ZonedInfo {
        zone_bytes: number("chunk_sectors") * SECTOR_BYTES,
        open_max: limit("max_open_zones"),
        active_max: limit("max_active_zones"),
        write_bytes_max: u32::try_from(number("max_sectors_kb") << 10).unwrap_or(u32::MAX),
    })
}
