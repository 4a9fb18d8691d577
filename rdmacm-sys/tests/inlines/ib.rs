//! Inlines of `ib.h`.

use crate::both;
use ibverbs_sys::__be32;
use rdmacm_sys::{ib_addr, ib_addr__bindgen_ty_1};
use std::ffi::c_int;

fn addresses() -> Vec<ib_addr> {
    let of = |bytes| ib_addr {
        ib_u: ib_addr__bindgen_ty_1 { uib_addr8: bytes },
    };
    let mut last = [0; 16];
    last[15] = 1;
    let mut first = [0; 16];
    first[0] = 1;
    vec![of([0; 16]), of(last), of(first), of([0xff; 16])]
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn address_predicates_in_rust_and_c_agree() {
    for address in &addresses() {
        both!(ib_addr_any: fn(*const ib_addr) -> c_int, address);
        both!(ib_addr_loopback: fn(*const ib_addr) -> c_int, address);
    }
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn address_comparisons_in_rust_and_c_have_the_same_sign() {
    let original: unsafe extern "C" fn(*const ib_addr, *const ib_addr) -> c_int =
        crate::original::original!("ib_addr_cmp");
    for a in &addresses() {
        for b in &addresses() {
            // SAFETY: both addresses are readable.
            let signs = unsafe { [rdmacm_sys::ib_addr_cmp(a, b), original(a, b)] };
            assert_eq!(signs[0].signum(), signs[1].signum());
        }
    }
}

#[cfg_attr(stub, ignore = "needs the headers of librdmacm-dev")]
#[test]
fn address_set_stores_words_in_order() {
    let original: unsafe extern "C" fn(*mut ib_addr, __be32, __be32, __be32, __be32) =
        crate::original::original!("ib_addr_set");
    let words = [1, 2, 3, 4].map(__be32::from_ne);
    let [mut rust, mut c] = [ib_addr::zeroed(); 2];
    // SAFETY: both addresses are writable, and consist of words.
    unsafe {
        rdmacm_sys::ib_addr_set(&raw mut rust, words[0], words[1], words[2], words[3]);
        original(&raw mut c, words[0], words[1], words[2], words[3]);
        assert_eq!(rust.ib_u.uib_addr32, words);
        assert_eq!(c.ib_u.uib_addr32, words);
    }
}
