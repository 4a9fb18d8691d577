//! `test_device.py`: the cases about device memory

use std::{io::ErrorKind, thread};

use softnic::Call;
use verbs::import::import_device;

use crate::fixture::Fixture;

const MOST: usize = 4096;

fn with_memory() -> Fixture {
    let fixture = Fixture::new();
    let limit = |device: &mut crate::provider::Properties| device.attr.max_dm_size = MOST as u64;
    fixture.fake.describe(limit);
    let attr = fixture.ctx.query_device().unwrap();
    assert_eq!(attr.max_dm_size(), MOST as u64);
    fixture
}

#[test]
fn create_dm() {
    let fixture = with_memory();
    for len in [4, MOST / 4, MOST / 2] {
        let dm = fixture.ctx.alloc_dm(len, 0).unwrap();
        assert_eq!(dm.len(), Some(len));
        assert_eq!(dm.context(), &fixture.ctx);
    }
}

#[test]
fn destroy_dm() {
    let fixture = with_memory();
    let dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    assert!(fixture.fake.live().contains(&"ibv_dm"));
    drop(dm);
    assert!(!fixture.fake.live().contains(&"ibv_dm"));
}

#[test]
fn create_dm_bad_flow() {
    let fixture = with_memory();
    let err = fixture.ctx.alloc_dm(MOST + 1, 0).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::ENOMEM));
    assert!(err.to_string().contains("4097 bytes"), "{err}");
    // Callers of this crate cannot set a wrong mask, so the device returns the error for one.
    fixture.fake.fail(Call::AllocDm, libc::EINVAL);
    assert!(fixture.ctx.alloc_dm(64, 0).is_err());
}

/// Freed once, even if the device refuses.
#[test]
fn destroy_dm_bad_flow() {
    let fixture = with_memory();
    let dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    fixture.fake.fail(Call::FreeDm, libc::EBUSY);
    drop(dm);
    let calls = fixture.fake.calls();
    let frees = calls.iter().filter(|call| **call == Call::FreeDm);
    assert_eq!(frees.count(), 1);
}

#[test]
fn dm_write() {
    let fixture = with_memory();
    let mut dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    for (offset, len) in [(0, 64), (4, 60), (60, 4)] {
        dm.write(offset, &vec![b'a'; len]).unwrap();
    }
}

#[test]
fn dm_write_bad_flow() {
    let fixture = with_memory();
    let mut dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    let err = dm.write(62, b"aaaa").unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    // A device may require multiples of four, with an error otherwise.
    fixture.fake.fail(Call::MemcpyToDm, libc::EINVAL);
    let err = dm.write(1, b"aaaa").unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert!(err.to_string().contains("4 bytes at 1"), "{err}");
    let mut bytes = [1; 64];
    dm.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 64]);
}

#[test]
fn dm_read() {
    let fixture = with_memory();
    let mut dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    dm.write(8, &[b'a'; 32]).unwrap();
    let mut bytes = [0; 34];
    dm.read(7, &mut bytes).unwrap();
    assert_eq!((bytes[0], bytes[33]), (0, 0));
    assert_eq!(&bytes[1..33], &[b'a'; 32]);
}

/// Processes cannot share a device in memory, so these are threads.
#[test]
fn multi_process_alloc_dm() {
    let fixture = with_memory();
    thread::scope(|scope| {
        for i in 0..5 {
            let ctx = fixture.ctx.clone();
            scope.spawn(move || {
                let mut dm = ctx.alloc_dm(MOST / 10, 0).unwrap();
                dm.write(0, &[i; 4]).unwrap();
                let mut bytes = [9; 4];
                dm.read(0, &mut bytes).unwrap();
                assert_eq!(bytes, [i; 4]);
            });
        }
    });
    assert!(!fixture.fake.live().contains(&"ibv_dm"));
}

#[test]
fn import_dm() {
    let fixture = with_memory();
    let mut dm = fixture.ctx.alloc_dm(64, 0).unwrap();
    // SAFETY: used to import the device; nothing of this context is destroyed by the import.
    let fd = unsafe { fixture.ctx.cmd_fd() };
    let fd = fd.try_clone_to_owned().unwrap();
    let imported = import_device(fd).unwrap();
    let imported = imported.import_dm(dm.kernel_handle()).unwrap();
    dm.write(0, &[0xab; 64]).unwrap();
    let mut bytes = [0; 64];
    imported.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0xab; 64]);
    // How much there is only the provider knows, but no memory has this.
    let beyond = imported.read(usize::MAX - 3, &mut bytes).unwrap_err();
    assert_eq!(beyond.kind(), ErrorKind::InvalidInput, "{beyond}");
    drop(imported);
    assert!(fixture.fake.calls().contains(&Call::UnimportDm));
    assert!(!fixture.fake.calls().contains(&Call::FreeDm));
}
