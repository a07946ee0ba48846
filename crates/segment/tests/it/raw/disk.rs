//! Raw-flash drives on files whose bytes can be changed behind their back.

use std::path::Path;

use bytes::Bytes;
use pumice_flash::{BlockAddr, Device, DeviceSpec, Geometry};
use pumice_reactor::{File, IoBuf, OpenOptions, WriteSync};

/// A device, and a second handle on the file that it lies on.
pub struct Disk {
    pub name: String,
    pub device: Device,
    file: File,
}

impl Disk {
    /// A plain file of this shape.
    pub async fn file(shape: Geometry) -> Self {
        let path = format!("/drive{}", shape.page_bytes);
        let spec = DeviceSpec::Path(Path::new(&path).into());
        let device = Device::create(&spec, shape.capacity_bytes()).await.expect("file");
        let device = device.with_geometry(shape).expect("shape");
        Self { name: format!("file, {shape}"), device, file: open(&path).await }
    }

    /// Emulated NAND on a sparse file.
    pub async fn nand(spec: &str) -> Self {
        let path = format!("/nand{}", pumice_base::hash::stable_hash64(0, spec.as_bytes()));
        let parsed = format!("{spec},path={path}").parse().expect("spec");
        let device = Device::create(&parsed, 0).await.expect("device");
        Self { name: spec.into(), device, file: open(&path).await }
    }

    /// Where a block begins, and where its out-of-band bytes do (`flash::emulated::storage`).
    fn at(&self, block: BlockAddr) -> (u64, u64) {
        let geometry = self.device.geometry();
        let number = u64::from(geometry.number(block));
        let oob_at = geometry.capacity_bytes() + u64::from(geometry.block_count()) * 16;
        let oob_bytes = u64::from(geometry.pages_per_block) * u64::from(geometry.oob_bytes);
        (number * u64::from(geometry.block_bytes()), oob_at + number * oob_bytes)
    }

    async fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let (result, buf) = self.file.read_at(IoBuf::zeroed(len), at).await;
        assert_eq!(result.expect("read"), len);
        buf.to_vec()
    }

    async fn write(&self, at: u64, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.file.write_at(bytes, at, WriteSync::Cached).await.expect("write");
    }

    /// Flips bit `bit` of a byte of a block.
    pub async fn flip(&self, block: BlockAddr, offset: u32, bit: u32) {
        let at = self.at(block).0 + u64::from(offset);
        let byte = self.read(at, 1).await[0];
        self.write(at, &[byte ^ (1 << bit)]).await;
    }

    /// Flips a bit of a page's out-of-band bytes.
    pub async fn flip_beside(&self, block: BlockAddr, page: u32, byte: u32, bit: u32) {
        let at = self.at(block).1 + u64::from(page * self.device.geometry().oob_bytes + byte);
        let found = self.read(at, 1).await[0];
        self.write(at, &[found ^ (1 << bit)]).await;
    }

    /// What lies on a page and beside it.
    pub async fn page(&self, block: BlockAddr, page: u32) -> (Vec<u8>, Vec<u8>) {
        let Geometry { page_bytes, oob_bytes, .. } = self.device.geometry();
        let (data_at, oob_at) = self.at(block);
        let data = self.read(data_at + u64::from(page * page_bytes), page_bytes as usize).await;
        (data, self.read_oob(oob_at + u64::from(page * oob_bytes), oob_bytes).await)
    }

    async fn read_oob(&self, at: u64, len: u32) -> Vec<u8> {
        if len == 0 { Vec::new() } else { self.read(at, len as usize).await }
    }

    /// Puts back what [`Disk::page`] found.
    pub async fn put(&self, block: BlockAddr, page: u32, (data, oob): &(Vec<u8>, Vec<u8>)) {
        let Geometry { page_bytes, oob_bytes, .. } = self.device.geometry();
        let (data_at, oob_at) = self.at(block);
        self.write(data_at + u64::from(page * page_bytes), data).await;
        if !oob.is_empty() {
            self.write(oob_at + u64::from(page * oob_bytes), oob).await;
        }
    }
}

async fn open(path: &str) -> File {
    File::open(Path::new(path), &OpenOptions::default()).await.expect("second handle")
}

/// A file's shape: 4 channels of 16 blocks.
pub fn shape(pages_per_block: u32, page_bytes: u32) -> Geometry {
    Geometry {
        channels: 4,
        dies_per_channel: 1,
        planes_per_die: 1,
        dies_per_block: 1,
        blocks_per_channel: 16,
        pages_per_block,
        page_bytes,
        read_bytes: page_bytes.min(4096),
        oob_bytes: 0,
    }
}
