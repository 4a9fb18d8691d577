//! A limit of locked memory, which softnic applies to queues too, as devices with queues in memory of the process do.

use softnic::Limits;
use verbs::attr::DeviceCaps;

use crate::{
    HOST,
    limited_calls::{self, CALLS},
    loopback::Fixture,
};

#[test]
fn calls_under_a_smaller_limit_of_locked_memory_leave_the_objects_working() {
    let fixture = Fixture::new();
    let host = HOST.get().unwrap();
    let caps = fixture.ctx.query_device().unwrap().caps();
    let resizes_srqs = caps.contains(DeviceCaps::SRQ_RESIZE);
    // From enough for all calls to none, by steps of a page around the needs of each.
    let around = (1..=128).rev().map(|pages| pages * 4096);
    for bytes in [8 << 20, 1 << 20].into_iter().chain(around).chain([0]) {
        let succeeded = limited_calls::make(&fixture, |calls| {
            host.set_limits(Limits::new().locked_memory(bytes));
            let succeeded = calls();
            host.set_limits(Limits::new());
            succeeded
        });
        // Of a protection domain, a window and a transition.
        assert_eq!(succeeded[6..9], [true; 3], "{bytes} bytes");
        match bytes {
            0x80_0000 => {
                let mut all = [true; CALLS];
                all[4] = resizes_srqs;
                assert_eq!(succeeded, all);
            }
            0 => {
                assert_eq!(succeeded[..6], [false; 6]);
                assert_eq!(succeeded[9..], [false; 4]);
            }
            _ => {}
        }
    }
}
