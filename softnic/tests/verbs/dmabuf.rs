//! Memory behind descriptors, registered as by the kernel.

use std::{
    fs::File,
    io::{self, Write as _},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use softnic::Fabric;
use verbs::{
    RemoteAccess,
    mr::{DmaBufRange, SharedMemory},
    op,
};

use crate::end::Connected;

/// Size of a page in bytes.
const PAGE: usize = 4096;
/// Offset of the second page.
const SECOND: u64 = 4096;

/// The program's own view of the memory.
fn view(memory: &SharedMemory) -> File {
    File::from(memory.as_fd().try_clone_to_owned().unwrap())
}

#[test]
fn peer_writes_and_reads_a_dmabuf_by_its_iova() {
    let mut this = Connected::new(Fabric::new());
    let memory = SharedMemory::create(4 * PAGE).unwrap();
    let file = view(&memory);
    let range = DmaBufRange {
        offset: SECOND + 24,
        len: 5000,
        iova: 0x7_0000_0018,
    };
    let registration = this.b.pd.register_dmabuf(memory.as_fd(), range);
    let region = registration.remote(RemoteAccess::WRITE | RemoteAccess::READ);
    let region = region.relaxed_ordering().create().unwrap();
    // The region keeps the memory.
    drop(memory);
    let token = region.token();
    assert_eq!((token.addr, token.len), (range.iova, 5000));
    let message: Vec<u8> = (0..5000).map(|index: u32| index.to_le_bytes()[0]).collect();
    this.qp_a
        .post(op::Write::new(this.a.filled(&message), token))
        .unwrap();
    this.a.reap(&mut this.qp_a, 1);
    let mut all = vec![7; 4 * PAGE];
    file.read_exact_at(&mut all, 0).unwrap();
    let (before, rest) = all.split_at(PAGE + 24);
    assert!(rest[..5000] == message[..]);
    assert!(before.iter().chain(&rest[5000..]).all(|byte| *byte == 0));
    file.write_all_at(b"of the device", SECOND + 24).unwrap();
    this.qp_a
        .post(op::Read::new(
            this.a.filled(&[0; 13]),
            token.slice(0..13).unwrap(),
        ))
        .unwrap();
    let done = this.a.reap(&mut this.qp_a, 1);
    assert_eq!(done[0].buf[..], *b"of the device");
    // The key ends with the region.
    drop(region);
    this.qp_a
        .post(op::Write::new(this.a.filled(b"late"), token))
        .unwrap();
    let done = this.a.reap(&mut this.qp_a, 1);
    assert_eq!(done[0].status, verbs::WcStatus::REM_ACCESS_ERR);
    file.read_exact_at(&mut all[..13], SECOND + 24).unwrap();
    assert_eq!(all[..13], *b"of the device");
}

/// A dma-buf of the kernel over a memory file, by `udmabuf`. The argument of the request is `struct udmabuf_create`: descriptor and
/// flags of 4 bytes, offset and size of 8.
fn udmabuf(device: &File, memory: &SharedMemory, len: u64) -> OwnedFd {
    /// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
    const CREATE: libc::Ioctl = 0x4018_7542;
    let number = u32::try_from(memory.as_fd().as_raw_fd()).unwrap();
    let create: [u64; 3] = [u64::from(number), 0, len];
    // SAFETY: the request reads the structure.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), CREATE, create.as_ptr()) };
    assert!(fd >= 0, "{}", io::Error::last_os_error());
    // SAFETY: fresh, with no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// With a dma-buf of the kernel where the machine has `udmabuf`; its absence is reported.
#[test]
fn peer_writes_into_a_dmabuf_of_the_kernel() {
    let device = File::options().read(true).write(true).open("/dev/udmabuf");
    let device = match device {
        Ok(device) => device,
        Err(error) => {
            // Past the capture of a passing test's output.
            let line = format!("LEFT OUT: a dma-buf of the kernel: /dev/udmabuf: {error}\n");
            io::stderr().write_all(line.as_bytes()).unwrap();
            return;
        }
    };
    let mut this = Connected::new(Fabric::new());
    let memory = SharedMemory::create(2 * PAGE).unwrap();
    let file = view(&memory);
    let dmabuf = udmabuf(&device, &memory, 2 * SECOND);
    let range = DmaBufRange {
        offset: SECOND,
        len: 100,
        iova: SECOND,
    };
    let registration = this.b.pd.register_dmabuf(dmabuf.as_fd(), range);
    let region = registration.remote(RemoteAccess::WRITE).create().unwrap();
    drop(dmabuf);
    this.qp_a
        .post(op::Write::new(this.a.filled(b"by a peer"), region.token()))
        .unwrap();
    let done = this.a.reap(&mut this.qp_a, 1);
    assert_eq!(done[0].status, verbs::WcStatus::SUCCESS);
    let mut text = [0; 9];
    file.read_exact_at(&mut text, SECOND).unwrap();
    assert_eq!(text, *b"by a peer");
}

fn errno_of(this: &Connected, fd: BorrowedFd<'_>, range: DmaBufRange) -> Option<i32> {
    let registration = this
        .b
        .pd
        .register_dmabuf(fd, range)
        .remote(RemoteAccess::WRITE);
    registration.create().err()?.raw_os_error()
}

/// The error numbers are those of `ib_umem_dmabuf_get` and `dma_buf_get` of Linux.
#[test]
fn descriptors_and_ranges_are_refused_as_by_the_kernel() {
    let this = Connected::new(Fabric::new());
    let memory = SharedMemory::create(2 * PAGE).unwrap();
    let range = |offset, len| DmaBufRange {
        offset,
        len,
        iova: offset,
    };
    let all = range(0, 2 * PAGE);
    assert_eq!(errno_of(&this, memory.as_fd(), all), None);
    for (offset, len) in [
        (0, 2 * PAGE + 1),
        (SECOND, PAGE + 1),
        (2 * SECOND, 1),
        (1 << 40, 1),
    ] {
        let errno = errno_of(&this, memory.as_fd(), range(offset, len));
        assert_eq!(errno, Some(libc::EINVAL), "{len} bytes at {offset}");
    }
    let file = File::open("/proc/self/exe").unwrap();
    assert_eq!(errno_of(&this, file.as_fd(), all), Some(libc::EINVAL));
    // `udmabuf` demands the seal as well.
    // SAFETY: the name is a string, copied by C.
    let unsealed = unsafe { libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_ALLOW_SEALING) };
    assert!(unsealed >= 0, "{}", io::Error::last_os_error());
    // SAFETY: fresh, with no other owner.
    let unsealed = File::from(unsafe { OwnedFd::from_raw_fd(unsealed) });
    unsealed.set_len(2 * SECOND).unwrap();
    assert_eq!(errno_of(&this, unsealed.as_fd(), all), Some(libc::EINVAL));
    // Unknown rights, and a closed descriptor: by C.
    let pd = this.b.pd.as_raw();
    let number = memory.as_fd().as_raw_fd();
    for (fd, offset, iova, access, errno) in [
        (-1, 0, 0, 1, libc::EBADF),
        (number, 0, 8, 1, libc::EINVAL),
        (number, 0, 0, 1 << 6, libc::EINVAL),
        (number, 0, 0, 1 << 5, libc::EINVAL),
        (number, 0, 0, 2, libc::EINVAL),
    ] {
        // SAFETY: a live domain, and numbers.
        let mr = unsafe { ibverbs_sys::ibv_reg_dmabuf_mr(pd, offset, 4096, iova, fd, access) };
        assert!(mr.is_null());
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(errno));
    }
    let fabric = &this.fabric;
    assert_eq!(fabric.books().registered_bytes(), 0);
}
