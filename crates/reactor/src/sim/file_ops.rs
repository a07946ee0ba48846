//! File operations of the simulated world: when they complete, and with what.

use super::disk::{Change, SimFile};
use super::engine::{CoreAt, Engine, Event, HostState, Open, Pending, errno};
use super::model::{CutMode, FaultOp, RandomEffect, RandomFault};
use super::net::HostId;
use crate::driver::{FileInfo, Handle, Op, OpenOptions, Outcome, WriteSync};
use pumice_base::checksum::crc32c;
use pumice_base::rng::Rng;
use std::io;
use std::path::{Path, PathBuf};

/// What O_DIRECT asks of memory, in bytes.
const DIRECT_MEMORY_BYTES: u32 = 512;
/// Opening, asking the length, and other work of the kernel alone, in ns.
const KERNEL_NS: u64 = 3_000;

/// A file operation's handle, resolved.
struct Target {
    host: HostId,
    path: PathBuf,
    read_only: bool,
    /// As [`Open::File`] has it.
    unit: u32,
}

impl Engine {
    fn target(&self, handle: &Handle) -> Target {
        match self.handles.get(&handle.sim_id()) {
            Some(Open::File { host, path, read_only, unit, .. }) => {
                Target { host: *host, path: path.clone(), read_only: *read_only, unit: *unit }
            }
            other => panic!("a file operation on {other:?}"),
        }
    }

    fn file_mut(&mut self, target: &Target) -> io::Result<&mut SimFile> {
        let files = &mut self.hosts[target.host as usize].disk.files;
        files.get_mut(&target.path).ok_or_else(|| errno(libc::EIO))
    }

    /// The change of a file that an operation makes, if it makes one.
    pub(crate) fn change_of(&self, op: &Op) -> Option<(PathBuf, Change)> {
        let (file, change) = match op {
            Op::Write { file, data, offset, .. } => {
                (file, Change::Write { offset: *offset, data: data.clone() })
            }
            Op::Punch { file, offset, bytes } => (file, Change::Punch { offset: *offset, len: *bytes }),
            Op::Allocate { file, offset, bytes } => (file, Change::Allocate { offset: *offset, len: *bytes }),
            Op::SetLen { file, bytes } => (file, Change::SetLen(*bytes)),
            Op::ManageZones { file, action, start, bytes } => {
                (file, Change::Zones { action: *action, start: *start, len: *bytes })
            }
            _ => return None,
        };
        let target = self.target(file);
        (!target.read_only).then_some((target.path, change))
    }

    /// Sets the time at which a file operation completes.
    pub(crate) fn start_file(&mut self, id: u64) {
        let now = self.now_ns;
        let Some(pending) = self.ops.get(&id) else { return };
        let host_id = pending.at.host;
        let host = &mut self.hosts[host_id as usize];
        let model = host.options.disk;
        let (latency, bytes, detail) = match &pending.op {
            Op::Read { buf, start, offset, .. } => (model.read_ns, (buf.len() - start) as u64, (*offset, 0)),
            Op::Write { data, offset, sync, .. } => {
                let durable = if *sync == WriteSync::Durable { model.durable_ns } else { 0 };
                let print = u64::from(crc32c(data)) << 32 | data.len() as u64;
                (model.write_ns + durable, data.len() as u64, (*offset, print))
            }
            Op::Sync { .. } => (model.sync_ns, 0, (0, 1)),
            Op::Punch { offset, bytes, .. } => (KERNEL_NS, 0, (*offset, *bytes)),
            Op::Allocate { offset, bytes, .. } => (KERNEL_NS, 0, (*offset, *bytes)),
            Op::SetLen { bytes, .. } => (KERNEL_NS, 0, (*bytes, 2)),
            Op::ManageZones { start, action, .. } => (model.durable_ns, 0, (*start, 4 + *action as u64)),
            _ => (KERNEL_NS, 0, (0, 3)),
        };
        let mut at = host.clock.finish_ns(now, latency, bytes, &model, &mut host.rng);
        if !matches!(pending.op, Op::Read { .. }) {
            at = at.max(host.writes_stall_until_ns);
        }
        self.note(32, id, detail.0, detail.1);
        self.push(at, Event::Finish(id));
        self.begin_write_back(id);
    }

    /// What a durable write or a sync waits for begins to leave the page cache, if the file lies there.
    fn begin_write_back(&mut self, id: u64) {
        let Some(Pending { op, .. }) = self.ops.get(&id) else { return };
        let (Op::Write { file, sync: WriteSync::Durable, .. } | Op::Sync { file }) = op else { return };
        let target = self.target(file);
        if target.unit > 1 {
            return;
        }
        let ranges = match op {
            Op::Write { data, offset, .. } => vec![(*offset, *offset + data.len() as u64)],
            _ => self.file_mut(&target).map_or_else(|_| Vec::new(), |file| file.dirty()),
        };
        for (from, to) in ranges {
            let Err(error) = self.strike(&target, FaultOp::WriteBack, from, to) else { continue };
            match self.ops.get_mut(&id) {
                Some(Pending { op: Op::Write { .. }, lost, .. }) => *lost = true,
                _ => drop(self.file_mut(&target).map(|file| file.lose_dirty((from, to)))),
            }
            if let Ok(file) = self.file_mut(&target) {
                file.write_back_error = error.raw_os_error();
            }
        }
    }

    /// Who has waited for a file to be durable is told of an error of the page cache, his own or another's: the kernel
    /// tells it once.
    fn end_write_back(&mut self, target: &Target) -> io::Result<()> {
        match self.file_mut(target)?.write_back_error.take_if(|_| target.unit == 1) {
            Some(number) => Err(errno(number)),
            None => Ok(()),
        }
    }

    /// Completes a file operation, or an immediate one of the network.
    pub(crate) fn finish_timed(&mut self, id: u64) {
        let Some(pending) = self.ops.get(&id) else { return };
        match &pending.op {
            Op::Bind { .. } | Op::Connect { .. } | Op::Shutdown { .. } => return self.finish_net(id),
            Op::Open { .. } | Op::Read { .. } | Op::Len { .. } | Op::ReportZones { .. } => {}
            _ => return self.finish_mutation(id),
        }
        let Some(Pending { at, token, op, .. }) = self.take_op(id) else { return };
        let outcome = match op {
            Op::Open { path, options } => Outcome::Opened(self.open(at, &path, &options)),
            Op::Len { file } => {
                let target = self.target(&file);
                Outcome::Done(self.file_mut(&target).map(|file| file.len()))
            }
            Op::ReportZones { file, from, zones_max } => {
                let target = self.target(&file);
                let report = |file: &mut SimFile| match file.zones() {
                    Some(zones) => Ok(zones.report(from, zones_max)),
                    None => Err(errno(libc::ENOTTY)),
                };
                Outcome::Zones(self.file_mut(&target).and_then(report))
            }
            Op::Read { file, mut buf, start, offset } => {
                let target = self.target(&file);
                let result = self.read(&target, &mut buf[start..], offset);
                Outcome::Read(result, buf)
            }
            other => panic!("not an operation that time completes: {other:?}"),
        };
        self.deliver(at, token, outcome, false);
    }

    fn strike(&mut self, target: &Target, op: FaultOp, from: u64, to: u64) -> io::Result<()> {
        let HostState { faults, random_faults, rng, counters, .. } = &mut self.hosts[target.host as usize];
        let planned = faults.iter_mut().find_map(|fault| fault.strike(&target.path, op, from, to));
        let mut by_chance = || {
            let mut here = random_faults.iter().filter(|fault| fault.op == op && fault.path == target.path);
            here.find_map(|fault| match fault.effect {
                RandomEffect::Errno(number) if rng.chance(fault.chance) => Some(errno(number)),
                _ => None,
            })
        };
        let Some(error) = planned.or_else(&mut by_chance) else { return Ok(()) };
        counters.spoilt_reads += u64::from(op == FaultOp::Read);
        Err(error)
    }

    /// Flips a bit of what was read, if a fault says so.
    fn flip_read(&mut self, target: &Target, out: &mut [u8]) {
        let HostState { random_faults, rng, counters, .. } = &mut self.hosts[target.host as usize];
        let flips = |fault: &&RandomFault| fault.effect == RandomEffect::Flip && fault.op == FaultOp::Read;
        for fault in random_faults.iter().filter(flips).filter(|fault| fault.path == target.path) {
            if !out.is_empty() && rng.chance(fault.chance) {
                out[rng.below(out.len() as u64) as usize] ^= 1 << rng.below(8);
                counters.spoilt_reads += 1;
            }
        }
    }

    /// A transfer of `bytes` that the kernel cuts short now and then, at a multiple of `unit`.
    fn quirk(&mut self, host: HostId, bytes: usize, unit: usize) -> usize {
        let host = &mut self.hosts[host as usize];
        if bytes > unit && host.options.quirks && host.rng.chance(1.0 / 256.0) {
            let units = (bytes - 1) / unit;
            return (1 + host.rng.below(units as u64) as usize) * unit;
        }
        bytes
    }

    fn open(&mut self, at: CoreAt, path: &Path, options: &OpenOptions) -> io::Result<(Handle, FileInfo)> {
        let direct_bytes = self.hosts[at.host as usize].direct_bytes;
        let direct = options.direct && direct_bytes > 0;
        let unit = if direct { direct_bytes } else { 1 };
        let target = Target { host: at.host, path: path.to_path_buf(), read_only: options.read_only, unit };
        self.strike(&target, FaultOp::Open, 0, u64::MAX)?;
        let locked = options.exclusive_lock
            && self.handles.values().any(|open| {
                matches!(open, Open::File { host, path: other, locked: true, .. } if *host == at.host && other == path)
            });
        let files = &mut self.hosts[at.host as usize].disk.files;
        match files.get(path) {
            Some(_) if options.create_new => return Err(errno(libc::EEXIST)),
            Some(file) if file.read_only && !options.read_only => return Err(errno(libc::EACCES)),
            Some(_) => {}
            None if options.create || options.create_new => {
                files.insert(path.to_path_buf(), SimFile::default());
            }
            None => return Err(errno(libc::ENOENT)),
        }
        if locked {
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("{} is in use by another process", path.display()),
            ));
        }
        let file = self.file_mut(&target)?;
        let (block_device, zoned) = (file.block_device, file.zones().map(|zones| zones.info()));
        let memory_alignment = if direct { DIRECT_MEMORY_BYTES } else { 1 };
        let handle = self.make_handle(Open::File {
            host: at.host,
            path: target.path,
            read_only: target.read_only,
            unit,
            locked: options.exclusive_lock,
        });
        Ok((handle, FileInfo { direct, alignment: unit, memory_alignment, block_device, zoned }))
    }

    fn read(&mut self, target: &Target, out: &mut [u8], offset: u64) -> io::Result<usize> {
        check_direct(target, offset, out.len(), out.as_ptr())?;
        self.strike(target, FaultOp::Read, offset, offset + out.len() as u64)?;
        if let Some(zones) = self.file_mut(target)?.zones() {
            zones.check_read(offset, offset + out.len() as u64)?;
        }
        let wanted = self.quirk(target.host, out.len(), target.unit as usize);
        let read = self.file_mut(target)?.read(offset, &mut out[..wanted]);
        self.flip_read(target, &mut out[..read]);
        let counters = &mut self.hosts[target.host as usize].counters;
        counters.reads += 1;
        counters.read_bytes += read as u64;
        Ok(read)
    }

    /// Completes an operation that changes the media; here the planned power cut strikes.
    fn finish_mutation(&mut self, id: u64) {
        let Some(pending) = self.ops.get(&id) else { return };
        let host = pending.at.host;
        let change = self.change_of(&pending.op).map(|(_, change)| change);
        if let Some(mode) = self.count_mutation(host) {
            let Some(Pending { op, .. }) = self.take_op(id) else { return };
            self.cut_at(host, mode, &op, change);
            self.push(self.now_ns, Event::Crash { host, kill: false });
            // Nothing may complete between the cut and the crash: the host's operations freeze here.
            self.stop_host(host, false);
            return;
        }
        let Some(Pending { at, token, op, seq, lost, .. }) = self.take_op(id) else { return };
        let outcome = match op {
            Op::Write { file, data, offset, sync } => {
                let target = self.target(&file);
                let result = self.write(&target, &data, offset, sync, lost);
                Outcome::Written(result, data)
            }
            Op::Sync { file } => {
                let target = self.target(&file);
                let result = self.strike(&target, FaultOp::Sync, 0, u64::MAX);
                Outcome::Done(result.and_then(|()| {
                    self.file_mut(&target)?.complete_sync(seq);
                    self.hosts[target.host as usize].counters.syncs += 1;
                    self.end_write_back(&target).map(|()| 0)
                }))
            }
            Op::Punch { file, .. }
            | Op::Allocate { file, .. }
            | Op::SetLen { file, .. }
            | Op::ManageZones { file, .. } => {
                let target = self.target(&file);
                let Some(change) = change else {
                    return self.deliver(at, token, Outcome::Done(Err(errno(libc::EBADF))), false);
                };
                Outcome::Done(self.change_space(&target, change))
            }
            other => panic!("not an operation that changes the media: {other:?}"),
        };
        self.deliver(at, token, outcome, false);
    }

    /// What the power cut leaves of the operation it strikes.
    fn cut_at(&mut self, host: HostId, mode: CutMode, op: &Op, change: Option<Change>) {
        let handle = match op {
            Op::Write { file, .. } | Op::Sync { file } | Op::Punch { file, .. } => file,
            Op::Allocate { file, .. } | Op::SetLen { file, .. } | Op::ManageZones { file, .. } => file,
            other => panic!("not an operation that changes the media: {other:?}"),
        };
        let target = self.target(handle);
        let mut rng = self.hosts[host as usize].rng.split("cut");
        let fits =
            change.as_ref().is_none_or(|change| self.hosts[host as usize].disk.fits(&target.path, change));
        let Ok(file) = self.file_mut(&target) else { return };
        match (mode, change) {
            (CutMode::Torn, Some(change)) if fits => file.tear(&change, &mut rng),
            (CutMode::After, Some(change)) if fits => file.force(&change),
            (CutMode::After, None) => file.complete_sync(u64::MAX),
            _ => {}
        }
    }

    fn write(
        &mut self,
        target: &Target,
        data: &bytes::Bytes,
        offset: u64,
        sync: WriteSync,
        lost: bool,
    ) -> io::Result<usize> {
        if target.read_only {
            return Err(errno(libc::EBADF));
        }
        check_direct(target, offset, data.len(), data.as_ptr())?;
        if let Err(error) = self.strike(target, FaultOp::Write, offset, offset + data.len() as u64) {
            let change = Change::Write { offset, data: data.clone() };
            self.leave_of_failed(target, change, sync == WriteSync::Durable, &error);
            return Err(error);
        }
        let written = self.quirk(target.host, data.len(), target.unit as usize);
        let change = Change::Write { offset, data: data.slice(..written) };
        if !self.hosts[target.host as usize].disk.fits(&target.path, &change) {
            return Err(errno(libc::ENOSPC));
        }
        let seq = self.next_seq();
        let file = self.file_mut(target)?;
        file.zones().map_or(Ok(()), |zones| zones.check(&change)).map_err(errno)?;
        if file.block_device && offset + written as u64 > file.len() {
            return Err(errno(libc::ENOSPC));
        }
        let is_durable = sync == WriteSync::Durable;
        if lost {
            file.lose(&change)
        } else {
            file.complete(seq, change, is_durable)
        }
        let counters = &mut self.hosts[target.host as usize].counters;
        counters.writes += 1;
        counters.written_bytes += written as u64;
        if is_durable {
            self.end_write_back(target)?;
        }
        Ok(written)
    }

    /// What a write that failed has changed nevertheless: nothing, all that it was to, or some of it.
    fn leave_of_failed(&mut self, target: &Target, change: Change, durable: bool, error: &io::Error) {
        let reached_the_drive = matches!(
            error.raw_os_error(),
            Some(libc::EIO | libc::ENODATA | libc::EREMOTEIO | libc::ETIMEDOUT)
        );
        if !reached_the_drive || !self.hosts[target.host as usize].disk.fits(&target.path, &change) {
            return;
        }
        let (seq, mut rng) =
            (self.next_seq(), Rng::from_seed(self.hosts[target.host as usize].rng.next_u64()));
        if let Ok(file) = self.file_mut(target) {
            file.fail(seq, &change, durable, &mut rng);
        }
    }

    fn change_space(&mut self, target: &Target, change: Change) -> io::Result<u64> {
        let (from, to) = match &change {
            Change::Zones { start, len, .. } => (*start, *start + *len),
            _ => (0, u64::MAX),
        };
        self.strike(target, FaultOp::Space, from, to)?;
        if !self.hosts[target.host as usize].disk.fits(&target.path, &change) {
            return Err(errno(libc::ENOSPC));
        }
        let seq = self.next_seq();
        let file = self.file_mut(target)?;
        if let Change::Zones { .. } = change {
            file.zones().ok_or(libc::ENOTTY).and_then(|zones| zones.check(&change)).map_err(errno)?;
            file.complete(seq, change, true);
            return Ok(0);
        }
        if file.zones().is_some() || (file.block_device && !matches!(change, Change::Punch { .. })) {
            return Err(errno(libc::EINVAL));
        }
        file.complete(seq, change, false);
        Ok(0)
    }
}

/// O_DIRECT's rules, as Linux enforces them.
fn check_direct(target: &Target, offset: u64, len: usize, memory: *const u8) -> io::Result<()> {
    let unit = u64::from(target.unit);
    let aligned = offset.is_multiple_of(unit)
        && (len as u64).is_multiple_of(unit)
        && (unit == 1 || memory.addr().is_multiple_of(DIRECT_MEMORY_BYTES as usize));
    if aligned { Ok(()) } else { Err(errno(libc::EINVAL)) }
}
