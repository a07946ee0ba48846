//! Drives as commands name them: opening, making and locking them, with errors that say what to do.

use std::cell::Cell;
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::pin;

use pumice_flash::{Access, Device, DeviceSpec, FlashError};
use pumice_kv::{OpenError, Store, StoreFormat};
use rustix::process::{Resource, getrlimit};

use crate::config::DEFAULT_DRIVE_BYTES;
use crate::exit::{Outcome, Stop};
use crate::process::{DEATH_RETRY, DEATH_WAIT, once_memory_is_free};

/// Share of the free space that a drive made without a size may take, in percent.
const FREE_SHARE_PERCENT: u64 = 90;
/// The smallest drive made without being told a size.
const DRIVE_BYTES_MIN: u64 = 256 << 20;
/// Bytes looked at for foreign data before formatting.
const PROBE_BYTES: usize = 1 << 20;
/// How our own drives begin: a superblock's or a segment's first bytes (`docs/format/`).
const OURS: [&[u8]; 2] = [b"PUMICESB", b"PUMSEGMT"];

/// How pages of a raw-flash drive begin that tell what it is.
const RAW_FLASH: [&[u8]; 3] = [b"PUMFTLCP", b"PUMFTLOP", b"PUMFTLTG"];
/// What to do where there is too little space for a drive whose size nobody named.
pub const NAME_A_SIZE: &str = "choose another place or name a --size";

/// Where such a page may begin, in bytes.
const RAW_FLASH_ALIGN: usize = 512;

/// Runs what a command does with drives, on a core of its own.
pub fn on_a_core<T>(work: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
    let config = pumice_reactor::Config::default();
    let has_begun = Cell::new(false);
    let mut work = pin!(async {
        has_begun.set(true);
        work.await
    });
    let ran = once_memory_is_free(|| match pumice_reactor::block_on_with(&config, work.as_mut()) {
        // A core that fails later has work that no other core can go on with.
        Err(error) if has_begun.get() => Ok(Err(Stop::doing("running a core", error))),
        ran => ran,
    });
    ran.map_err(|e| Stop::doing("starting a core", e))?
}

/// Reads a `--device` SPEC. What is there and can be no drive is refused before it is opened: opening a pipe would wait for
/// somebody at its other end.
pub fn parse(spec: &str) -> Result<DeviceSpec, Stop> {
    let parsed: DeviceSpec = spec.parse().map_err(Stop::because)?;
    if let DeviceSpec::Path(path) = &parsed
        && let Ok(kind) = fs::metadata(path).map(|found| found.file_type())
        && !kind.is_file()
        && !kind.is_block_device()
    {
        return Err(Stop::because(match kind.is_dir() {
            true => format!(
                "{spec} is a directory: name a drive in it, such as {}",
                path.join("drive0").display()
            ),
            false => format!("{spec} is neither a file nor a block device"),
        }));
    }
    Ok(parsed)
}

/// Refuses to make a drive in a file where a device was meant that is not there: files below /dev lie in memory.
pub fn refuse_device_that_is_missing(spec: &DeviceSpec) -> Outcome {
    let DeviceSpec::Path(path) = spec else { return Ok(()) };
    let is_below = |folder: &Path| fs::canonicalize(folder_of(path)).is_ok_and(|at| at.starts_with(folder));
    if is_there(path)? || !is_below(Path::new("/dev")) || is_below(Path::new("/dev/shm")) {
        return Ok(());
    }
    Err(Stop::because(format!(
        "there is no device {}, and a file in its place would lie in memory: name one that is there (`lsblk` lists disks)",
        path.display()
    )))
}

/// Refuses a drive that is named twice, by whatever names.
pub fn refuse_twice(specs: &[DeviceSpec]) -> Result<(), Stop> {
    let mut known: Vec<((u64, u64), &DeviceSpec)> = Vec::new();
    for spec in specs {
        let DeviceSpec::Path(path) = spec else { continue };
        let Ok(found) = fs::metadata(path) else { continue };
        let is_block = found.file_type().is_block_device();
        let identity = if is_block { (0, found.rdev()) } else { (found.dev(), found.ino()) };
        if let Some((_, first)) = known.iter().find(|(other, _)| *other == identity) {
            return Err(Stop::because(format!(
                "{first} and {spec} are the same drive: name each drive once"
            )));
        }
        known.push((identity, spec));
    }
    Ok(())
}

/// Opens `spec` for reading and writing, locked; one that a server had that has just died is waited for.
pub async fn open_locked(spec: &DeviceSpec) -> Result<Device, Stop> {
    let opened = once_unlocked(|| Device::open(spec, Access::ReadWrite)).await;
    opened.map_err(|error| explain(spec, &error))
}

async fn once_unlocked<F>(open: impl Fn() -> F) -> Result<Device, FlashError>
where
    F: Future<Output = Result<Device, FlashError>>,
{
    let started = pumice_reactor::now();
    loop {
        match open().await {
            Err(FlashError::Locked { .. }) if started.elapsed() < DEATH_WAIT => {
                pumice_reactor::sleep(DEATH_RETRY).await;
            }
            opened => return opened,
        }
    }
}

fn explain(spec: &DeviceSpec, error: &FlashError) -> Stop {
    match error {
        FlashError::Locked { .. } => Stop::because(format!(
            "drive {spec}: {error}; ask the server that has it with `pumice info --data DIR`"
        )),
        _ if matches!(spec, DeviceSpec::Path(path) if !path.exists()) => Stop::because(format!(
            "drive {spec}: there is no such file or device; make a drive with `pumice format {spec} --size SIZE`"
        )),
        _ => Stop::because(format!("drive {spec}: {error}")),
    }
}

/// Why drives could not be opened as a store. What does not begin like a drive of ours most likely is none: that is
/// said first.
pub fn explain_unreadable<'a>(specs: impl Iterator<Item = &'a DeviceSpec>, error: &str) -> Stop {
    let paths = specs.filter_map(|spec| match spec {
        DeviceSpec::Path(path) => Some(path),
        DeviceSpec::Emulated(_) => None,
    });
    for path in paths {
        let mut head = [0; 8];
        let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut head));
        if read.is_err() || !OURS.contains(&&head[..]) {
            let shown = path.display();
            return Stop::because(match fs::metadata(path).map(|found| (found.is_file(), found.len())) {
                Ok((true, 0)) => format!(
                    "{shown} is no drive, it is empty; `pumice format {shown} --size SIZE` makes it one"
                ),
                _ => format!(
                    "{shown} is no drive, or its beginning is damaged ({error}); if nothing on it is wanted, `pumice \
                     format {shown} --force` makes it an empty drive"
                ),
            });
        }
    }
    Stop::because(error)
}

/// Opens `spec` for reading only, after making sure that no server has it.
pub async fn open_unserved(spec: &DeviceSpec) -> Result<Device, Stop> {
    // Other errors do not matter here: media that cannot be written can still be read.
    if let Err(error @ FlashError::Locked { .. }) =
        once_unlocked(|| Device::open(spec, Access::ReadWrite)).await
    {
        return Err(explain(spec, &error));
    }
    Device::open(spec, Access::ReadOnly).await.map_err(|error| explain(spec, &error))
}

/// 16 random bytes, never all zero: the identity of a drive or of a set of drives.
pub fn new_id() -> Result<[u8; 16], Stop> {
    let mut id = [0; 16];
    let source = "/dev/urandom";
    fs::File::open(source)
        .and_then(|mut file| file.read_exact(&mut id))
        .map_err(|e| Stop::doing(source, e))?;
    id[0] |= 1;
    Ok(id)
}

/// What its file system has free for a file in `folder`, in bytes.
fn free_bytes(folder: &Path) -> rustix::io::Result<u64> {
    rustix::fs::statvfs(folder).map(|space| space.f_bavail * space.f_frsize)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What to tell of a drive in a file that may grow beyond its file system: making it takes next to nothing, as it is sparse.
/// Asked once the file has its size.
pub fn too_large_for_its_place(path: &Path) -> Option<String> {
    const BLOCK_BYTES: u64 = 512;
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let free = free_bytes(folder_of(path)).ok()?;
    let may_grow = found.len().saturating_sub(found.blocks() * BLOCK_BYTES);
    (may_grow > free).then(|| {
        use pumice_base::size::format_size;
        format!(
            "{} is a sparse file that may take {} more, and its file system has {} free: writes are refused once that is used \
             up; make room there before, or format it with a smaller --size",
            path.display(),
            format_size(may_grow),
            format_size(free)
        )
    })
}

/// The size of a drive that is made at `path` without being told: [`DEFAULT_DRIVE_BYTES`], or what fits there and the process
/// may write to a file. `advice`: what to do where that is too little.
pub fn fitting_bytes(path: &Path, advice: &str) -> Result<u64, Stop> {
    let parent = folder_of(path);
    let free = free_bytes(parent).map_err(|e| {
        Stop::doing(format!("{}: looking for space in {}", path.display(), parent.display()), e)
    })?;
    let allowed = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
    let bytes = DEFAULT_DRIVE_BYTES.min(free / 100 * FREE_SHARE_PERCENT).min(allowed) >> 20 << 20;
    if bytes < DRIVE_BYTES_MIN {
        use pumice_base::size::format_size;
        let (free, limit) = (format_size(free), format_size(allowed));
        let limited = format!("no file may be larger than {limit} (ulimit -f)");
        let why =
            if allowed < DRIVE_BYTES_MIN { limited } else { format!("{} has {free} free", parent.display()) };
        return Err(Stop::because(format!("{}: {why}, too little for a drive: {advice}", path.display())));
    }
    Ok(bytes)
}

/// Refuses to format over what is there, before a file grows. A drive of ours whose first bytes are damaged the store itself refuses.
pub fn refuse_filled(path: &Path) -> Result<(), Stop> {
    let mut head = vec![0; PROBE_BYTES];
    let Ok(mut file) = fs::File::open(path) else { return Ok(()) };
    let mut got = 0;
    while got < head.len() {
        match file.read(&mut head[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) => return Err(Stop::doing(format!("reading {}", path.display()), e)),
        }
    }
    head.truncate(got);
    if head.iter().all(|&b| b == 0) {
        return Ok(());
    }
    if OURS.iter().any(|magic| head.starts_with(magic)) {
        return Err(Stop::No(format!(
            "{} is a Pumice drive already; --force destroys what it holds",
            path.display()
        )));
    }
    let mut pages = head.chunks(RAW_FLASH_ALIGN);
    if pages.any(|page| RAW_FLASH.iter().any(|magic| page.starts_with(magic))) {
        return Err(Stop::No(format!(
            "{} is a raw-flash drive already; --force destroys what it holds",
            path.display()
        )));
    }
    Err(Stop::No(format!(
        "{} holds data that is not Pumice's; --force formats it all the same and destroys that",
        path.display()
    )))
}

/// Makes `device` an empty drive.
pub async fn format(spec: &DeviceSpec, device: &Device, options: &StoreFormat) -> Result<(), Stop> {
    Store::format(device, options).await.map_err(|error| match &error {
        OpenError::Heap(pumice_segment::HeapError::AlreadyFormatted { .. }) => {
            Stop::No(format!("{spec}: {error}"))
        }
        _ => Stop::because(format!("formatting {spec}: {error}")),
    })
}

/// Makes the data directory when it is not there.
pub fn make_folder(data: &Path) -> Outcome {
    let shown = data.display();
    match fs::create_dir_all(data) {
        Err(_) if data.exists() && !data.is_dir() => {
            Err(Stop::because(format!("--data {shown}: this is not a directory")))
        }
        made => made.map_err(|e| Stop::doing(format!("--data {shown}: making it"), e)),
    }
}

/// Where the default drive in `data` is.
pub fn default_path(data: &Path) -> PathBuf {
    data.join("drive0")
}

/// Opens the default drive at `path`, locked; makes it when it is not there.
pub async fn open_default(path: &Path) -> Result<Device, Stop> {
    if !is_there(path)? {
        make_default(path).await?;
    }
    open_locked(&DeviceSpec::Path(path.to_owned())).await
}

/// A link that leads nowhere is there, too: what it means is not mounted, and an empty drive in its place would hide that.
fn is_there(path: &Path) -> Result<bool, Stop> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Stop::doing(format!("drive {}", path.display()), e)),
    }
}

/// Makes the drive under another name, which is exchanged for its own only once the drive is whole: a start that is killed
/// leaves nothing that the next one takes for a drive. What it did leave is formatted again rather than removed: of two
/// servers that start at once, one might remove what the other has just locked.
async fn make_default(path: &Path) -> Outcome {
    let shown = path.display();
    let advice = format!(
        "choose another place (--data), name a drive (--device), or make a small one here with `pumice format {shown} --size SIZE`"
    );
    let bytes = fitting_bytes(path, &advice)?;
    let unfinished = path.with_extension("new");
    let spec = DeviceSpec::Path(unfinished.clone());
    let failed = |e: &dyn std::fmt::Display| Stop::doing(format!("making drive {shown}"), e);
    let device = once_unlocked(|| Device::create(&spec, bytes)).await.map_err(|e| failed(&e))?;
    if is_there(path)? {
        // Another server has made it while this one waited for the lock, so what is here now is a name without a use.
        let _ = fs::remove_file(&unfinished);
        return Ok(());
    }
    tracing::info!("making drive {shown}, up to {} as it fills", pumice_base::size::format_size(bytes));
    let options = StoreFormat { drive_id: new_id()?, force: true, ..StoreFormat::default() };
    format(&spec, &device, &options).await?;
    device.sync().await.map_err(|e| failed(&e))?;
    // Still locked: nobody meets the drive without its name. It is opened by that name afterwards, which messages show.
    fs::rename(&unfinished, path).map_err(|e| failed(&e))?;
    fs::File::open(folder_of(path)).and_then(|folder| folder.sync_all()).map_err(|e| failed(&e))
}
