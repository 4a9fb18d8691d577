//! Memory longer than one registration of the device can be.

use std::{io::ErrorKind, sync::atomic::Ordering};

use softnic::Call;
use verbs::{
    RemoteAccess, RemoteToken,
    mr::{MemoryHandle, RegionParts, RemoteTokens},
};

use crate::{fixture::Fixture, memory::Watched};

const GRANULE: usize = 1 << 16;

/// On a device that registers a little more than two granules at once.
fn limited(max: usize) -> Fixture {
    let fixture = Fixture::new();
    fixture
        .fake
        .describe(|device| device.attr.orig_attr.max_mr_size = max as u64);
    fixture
}

fn register(fixture: &Fixture, len: usize) -> RegionParts {
    // The allocator of these tests does not align bytes.
    let memory = MemoryHandle::new(vec![0; len]);
    let registration = fixture.pd.register(memory).remote(RemoteAccess::WRITE);
    registration.create_parts().unwrap()
}

#[test]
fn memory_longer_than_a_registration_is_registered_in_parts() {
    let fixture = limited(2 * GRANULE + 4096);
    let len = 5 * GRANULE + 100;
    let region = register(&fixture, len);
    assert_eq!((region.len(), region.tokens().len()), (len, len as u64));
    let tokens = region.tokens();
    let mut next = tokens.parts()[0].addr;
    for token in tokens.parts() {
        assert_eq!(token.addr, next);
        assert!(token.len <= 2 * GRANULE as u64);
        next += token.len;
        assert!(next.is_multiple_of(GRANULE as u64) || next == tokens.parts()[0].addr + len as u64);
    }
    assert!(tokens.parts().len() >= 3);
    // Across the ends of parts.
    let bytes: Vec<u8> = (0..len)
        .map(|index| (index % 251).to_le_bytes()[0])
        .collect();
    region.write(0, &bytes);
    for (offset, len) in [(0, len), (GRANULE - 3, 3 * GRANULE), (len - 1, 1), (len, 0)] {
        let mut back = vec![0; len];
        region.read(offset, &mut back);
        assert!(
            back == bytes[offset..offset + len],
            "{len} bytes at {offset}"
        );
    }
    let undivided = register(&limited(usize::MAX), 5000);
    assert_eq!(undivided.parts().len(), 1);
}

#[test]
fn pairs_of_local_and_remote_parts_cover_each_byte_once() {
    let fixture = limited(GRANULE);
    let region = register(&fixture, 4 * GRANULE);
    // The peer's parts have other lengths.
    let lens = [1000, 70_000, 1, 3 * GRANULE as u64];
    let part = |(index, len): (u32, u64)| RemoteToken {
        addr: u64::from(index) << 32,
        len,
        rkey: index,
    };
    let peer = RemoteTokens::new((0..).zip(lens).map(part).collect());
    let (start, len) = (77, 3 * GRANULE + 500);
    let remote = peer.slice(500..500 + len as u64).unwrap();
    let pairs = region.pairs(start..start + len, &remote).unwrap();
    let first = region.parts()[0].token().addr;
    let (mut local, mut bytes) = (first + start as u64, 500);
    for (memory, token) in &pairs {
        assert_eq!(
            (memory.len() as u64, memory.token().addr),
            (token.len, local)
        );
        let mut offset = bytes;
        let index = lens.iter().position(|len| {
            let inside = offset < *len;
            offset -= if inside { 0 } else { *len };
            inside
        });
        assert_eq!(
            (token.rkey as usize, token.addr & 0xffff_ffff),
            (index.unwrap(), offset)
        );
        local += token.len;
        bytes += token.len;
    }
    assert_eq!(bytes, 500 + len as u64);
    let err = region.pairs(0..5, &peer).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    let all = peer.len();
    #[expect(clippy::reversed_empty_ranges, reason = "the point of the test")]
    for wrong in [0..all + 1, 5..4] {
        assert!(peer.slice(wrong).is_err());
    }
    assert_eq!(peer.slice(all..all).unwrap().parts(), []);
}

#[test]
fn failed_part_ends_the_others_and_returns_the_memory() {
    let fixture = limited(GRANULE);
    let (memory, dropped) = Watched::new(4 * GRANULE);
    fixture.fake.fail_after(2, Call::RegMr, libc::ENOMEM);
    let registration = fixture.pd.register(MemoryHandle::new(memory));
    let refused = registration
        .remote(RemoteAccess::WRITE)
        .create_parts()
        .unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
    let registration = fixture
        .pd
        .register(refused.value)
        .remote(RemoteAccess::WRITE);
    let region = registration.create_parts().unwrap();
    let part = region.parts()[1].clone();
    drop(region);
    assert!(!dropped.load(Ordering::Relaxed));
    drop(part);
    assert!(dropped.load(Ordering::Relaxed));
    let (memory, _) = Watched::new(64);
    let tiny = fixture.pd.register(MemoryHandle::new(memory));
    fixture
        .fake
        .describe(|device| device.attr.orig_attr.max_mr_size = 4096);
    let refused = tiny.remote(RemoteAccess::WRITE).create_parts().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
}
