//! The cache lines of a queue pair.

use std::mem::offset_of;

use super::*;
use crate::mr::Buf;

#[test]
fn hot_fields_are_in_one_line() {
    const LINE: usize = 64;
    type Pair = Inner<Buf, Buf>;
    assert_eq!(align_of::<Pair>(), LINE);
    let send = offset_of!(Pair, send) + offset_of!(Sending<Buf>, in_flight);
    assert!(offset_of!(Pair, raw) < send && offset_of!(Pair, table) < send);
    assert!(send + InFlight::<Buf>::HOT_END <= LINE);
    let receive = offset_of!(Pair, receive) + offset_of!(Receiving<Buf>, in_flight);
    assert_eq!(receive % LINE, 0);
}
