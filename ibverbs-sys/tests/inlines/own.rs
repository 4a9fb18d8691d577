//! Inlines with logic of their own.

use crate::original::original;
use crate::sample::Sample;
use crate::world::{Outcome, World, called, observe, token};
use ibverbs_sys::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

/// Calls the Rust and the C function, compares, and returns the outcome.
macro_rules! both {
    ($name:ident: fn($($type:ty),*) -> $ret:ty, $($value:expr),*) => {{
        let original: unsafe extern "C" fn($($type),*) -> $ret = original!(stringify!($name));
        let rust = observe(|| {
            // SAFETY: the arguments outlive the call, and spies dereference no pointer.
            format!("{:?}", unsafe { ibverbs_sys::$name($($value),*) })
        });
        let c = observe(|| {
            // SAFETY: the arguments outlive the call, and spies dereference no pointer.
            format!("{:?}", unsafe { original($($value),*) })
        });
        assert_eq!(rust, c, stringify!($name));
        rust
    }};
}

/// Calls and compares a pair of functions, for functions that are safe in Rust.
macro_rules! both_safe {
    ($name:ident: fn($type:ty $(, $more:ty)*) -> $ret:ty, $($value:expr),*) => {{
        let original: unsafe extern "C" fn($type $(, $more)*) -> $ret =
            original!(stringify!($name));
        // SAFETY: the function only computes with its arguments.
        assert_eq!(ibverbs_sys::$name($($value),*), unsafe { original($($value),*) });
    }};
}

fn libraries(outcome: &Outcome, function: &str) -> bool {
    matches!(&outcome.calls[..], [call] if call.starts_with(&format!("the library's {function}(")))
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn computations_in_rust_and_c_agree() {
    for number in [
        0,
        1,
        0xff,
        0x100,
        0x1_23ff,
        0x3fff,
        0xfc000,
        0xfffff,
        u32::MAX,
    ] {
        both_safe!(ibv_inc_rkey: fn(u32) -> u32, number);
        both_safe!(ibv_flow_label_to_udp_sport: fn(u32) -> u16, number);
        for qpt in [
            ibv_qp_type::IBV_QPT_RC,
            ibv_qp_type::IBV_QPT_UD,
            ibv_qp_type(31),
        ] {
            both_safe!(ibv_is_qpt_supported: fn(u32, ibv_qp_type) -> c_int, number, qpt);
        }
    }
    both_safe!(ibv_cq_ex_to_cq: fn(*mut ibv_cq_ex) -> *mut ibv_cq, token(1));
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn verbs_get_ctx_of_extended_context_returns_its_table() {
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    both!(verbs_get_ctx: fn(*mut ibv_context) -> *mut verbs_context, context);
    // SAFETY: the context is part of `world`.
    assert_eq!(unsafe { verbs_get_ctx(context) }, &raw mut world.vctx);
    world.vctx.context.abi_compat = ptr::null_mut();
    both!(verbs_get_ctx: fn(*mut ibv_context) -> *mut verbs_context, context);
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn query_device_ex_without_provider_support_uses_the_plain_query() {
    unsafe extern "C" fn spy<const RETURNED: c_int>(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        size: usize,
    ) -> c_int {
        called(
            "query_device_ex",
            &[format!("{context:?} {input:?} {attr:?} {size}")],
        );
        RETURNED
    }
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    let mut attr = ibv_device_attr_ex::zeroed();
    let mut input = ibv_query_device_ex_input { comp_mask: 0 };
    macro_rules! query {
        ($input:expr) => {
            both!(
                ibv_query_device_ex: fn(
                    *mut ibv_context, *const ibv_query_device_ex_input, *mut ibv_device_attr_ex
                ) -> c_int,
                context, $input, &raw mut attr
            )
        };
    }
    assert!(libraries(&query!(ptr::null()), "ibv_query_device"));
    assert!(libraries(&query!(&raw const input), "ibv_query_device"));
    for (slot, calls) in [
        (spy::<0> as unsafe extern "C" fn(_, _, _, _) -> _, 1),
        (spy::<{ libc::EINVAL }>, 1),
        (spy::<{ libc::EOPNOTSUPP }>, 2),
        (spy::<{ libc::ENOSYS }>, 2),
    ] {
        world.vctx.query_device_ex = Some(slot);
        assert_eq!(query!(&raw const input).calls.len(), calls);
    }
    input.comp_mask = 1;
    let outcome = query!(&raw const input);
    assert_eq!(outcome.returned, Ok(libc::EINVAL.to_string()));
    assert!(outcome.calls.is_empty());
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn query_device_ex_with_plain_query_zeroes_the_other_fields() {
    let mut world = World::new();
    let mut attr = ibv_device_attr_ex::zeroed();
    attr.raw_packet_caps = 1;
    // SAFETY: the world and `attr` outlive the call.
    let rc =
        unsafe { ibv_query_device_ex(&raw mut world.vctx.context, ptr::null(), &raw mut attr) };
    assert_eq!((rc, attr.raw_packet_caps), (c_int::sample(), 0));
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn query_port_without_provider_support_uses_the_plain_query() {
    unsafe extern "C" fn spy(
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
        size: usize,
    ) -> c_int {
        called(
            "query_port",
            &[format!("{context:?} {port} {attr:?} {size}")],
        );
        0
    }
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    let mut attr = ibv_port_attr::zeroed();
    macro_rules! query {
        () => {
            both!(
                ___ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int,
                context, 1, &raw mut attr
            )
        };
    }
    attr.lid = 5;
    assert!(libraries(&query!(), "ibv_query_port"));
    assert_eq!(attr.lid, 0, "what is not filled is cleared");
    world.vctx.query_port = Some(spy);
    assert!(query!().calls[0].starts_with("query_port("));
    // SAFETY: the world and `attr` outlive the call.
    let macros = observe(|| unsafe { ibv_query_port(context, 1, &raw mut attr) }.to_string());
    assert_eq!(macros, query!(), "the macro's name and its function");
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn gid_queries_pass_the_size_of_an_entry() {
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    let one = both!(
        ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32) -> c_int,
        context, 1, 2, token(3), 4
    );
    assert!(libraries(&one, "_ibv_query_gid_ex"));
    let all = both!(
        ibv_query_gid_table: fn(*mut ibv_context, *mut ibv_gid_entry, usize, u32) -> isize,
        context, token(1), 2, 3
    );
    assert!(libraries(&all, "_ibv_query_gid_table"));
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn reg_mr_passes_optional_flags() {
    let access = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    let plain = both!(
        __ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_uint, c_int) -> *mut ibv_mr,
        token(1), token(2), 3, access, 0
    );
    assert!(libraries(&plain, "ibv_reg_mr_iova2"));
    let iova = both!(
        __ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint, c_int) -> *mut ibv_mr,
        token(1), token(2), 3, 4, access, 0
    );
    assert!(libraries(&iova, "ibv_reg_mr_iova2"));
    // SAFETY: the library's function is replaced by a spy that dereferences no pointer.
    unsafe {
        let macros = observe(|| format!("{:?}", ibv_reg_mr(token(1), token(2), 3, access)));
        assert_eq!(macros, plain);
        let macros = observe(|| format!("{:?}", ibv_reg_mr_iova(token(1), token(2), 3, 4, access)));
        assert_eq!(macros, iova);
    }
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn bind_mw_of_unbindable_window_is_refused() {
    unsafe extern "C" fn spy(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
        called("bind_mw", &[format!("{qp:?} {mw:?} {bind:?}")]);
        0
    }
    let mut world = World::new();
    world.vctx.context.ops.bind_mw = Some(spy);
    let mut bind = ibv_mw_bind::zeroed();
    let (mw, mr) = (&raw mut world.mw, &raw mut world.mr);
    macro_rules! bind {
        () => {
            both!(
                ibv_bind_mw: fn(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind) -> c_int,
                token(1), mw, &raw mut bind
            )
            .returned
            .unwrap()
            .parse::<c_int>()
            .unwrap()
        };
    }
    world.mw.type_ = ibv_mw_type::IBV_MW_TYPE_2;
    assert_eq!(bind!(), libc::EINVAL);
    world.mw.type_ = ibv_mw_type::IBV_MW_TYPE_1;
    assert_eq!(bind!(), 0);
    bind.bind_info.length = 1;
    assert_eq!(bind!(), libc::EINVAL);
    bind.bind_info.mr = mr;
    assert_eq!(bind!(), 0);
    world.mr.pd = token(1);
    assert_eq!(bind!(), libc::EPERM);
    world.mr.pd = ptr::null_mut();
    bind.bind_info = ibv_mw_bind_info::zeroed();
    bind.bind_info.addr = 1;
    assert_eq!(bind!(), libc::EINVAL);
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn invalidated_rkey_equals_native_immediate_data() {
    unsafe extern "C" fn spy(cq: *mut ibv_cq_ex) -> __be32 {
        called("read_imm_data", &[format!("{cq:?}")]);
        __be32(0x0102_0304)
    }
    let mut world = World::new();
    world.cq_ex.read_imm_data = Some(spy);
    let cq = &raw mut world.cq_ex;
    let outcome = both!(ibv_wc_read_invalidated_rkey: fn(*mut ibv_cq_ex) -> u32, cq);
    assert_eq!(outcome.returned, Ok(0x0102_0304.to_string()));
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn create_srq_ex_of_basic_queue_calls_create_srq() {
    unsafe extern "C" fn spy(
        context: *mut ibv_context,
        attr: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq {
        called("create_srq_ex", &[format!("{context:?} {attr:?}")]);
        token(7)
    }
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    for slot in [None, Some(spy as _)] {
        world.vctx.create_srq_ex = slot;
        for comp_mask in 0..16 {
            for srq_type in [ibv_srq_type::IBV_SRQT_BASIC, ibv_srq_type::IBV_SRQT_XRC] {
                let mut attr = ibv_srq_init_attr_ex::zeroed();
                (attr.comp_mask, attr.srq_type, attr.pd) = (comp_mask, srq_type, token(1));
                both!(
                    ibv_create_srq_ex: fn(
                        *mut ibv_context, *mut ibv_srq_init_attr_ex
                    ) -> *mut ibv_srq,
                    context, &raw mut attr
                );
            }
        }
    }
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn post_srq_ops_unsupported_reports_the_first_as_bad() {
    let mut world = World::new();
    let srq = &raw mut world.srq;
    let mut bad = [token(1); 2];
    let [rust, c] = &mut bad;
    let original: unsafe extern "C" fn(
        *mut ibv_srq,
        *mut ibv_ops_wr,
        *mut *mut ibv_ops_wr,
    ) -> c_int = original!("ibv_post_srq_ops");
    // SAFETY: the world and `bad` outlive the calls.
    unsafe {
        assert_eq!(
            ibv_post_srq_ops(srq, token(2), rust),
            original(srq, token(2), c)
        );
    }
    assert_eq!(bad, [token(2); 2]);
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn create_qp_ex_with_pd_only_calls_create_qp() {
    unsafe extern "C" fn spy(
        context: *mut ibv_context,
        attr: *mut ibv_qp_init_attr_ex,
    ) -> *mut ibv_qp {
        called("create_qp_ex", &[format!("{context:?} {attr:?}")]);
        token(7)
    }
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    for slot in [None, Some(spy as _)] {
        world.vctx.create_qp_ex = slot;
        for comp_mask in 0..16 {
            let mut attr = ibv_qp_init_attr_ex::zeroed();
            (attr.comp_mask, attr.pd) = (comp_mask, token(1));
            both!(
                ibv_create_qp_ex: fn(*mut ibv_context, *mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
                context, &raw mut attr
            );
        }
    }
}

#[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
#[test]
fn create_wq_initializes_private_fields() {
    unsafe extern "C" fn spy(_: *mut ibv_context, attr: *mut ibv_wq_init_attr) -> *mut ibv_wq {
        // SAFETY: the test passes the queue to return in the attributes.
        unsafe { (*attr).pd.cast() }
    }
    let mut world = World::new();
    let context = &raw mut world.vctx.context;
    let mut attr = ibv_wq_init_attr::zeroed();
    macro_rules! create {
        () => {
            both!(
                ibv_create_wq: fn(*mut ibv_context, *mut ibv_wq_init_attr) -> *mut ibv_wq,
                context, &raw mut attr
            )
        };
    }
    assert_eq!(create!().errno, libc::EOPNOTSUPP);
    world.vctx.create_wq = Some(spy);
    assert_eq!(create!().returned, Ok("0x0".to_owned()));
    world.wq.events_completed = 5;
    attr.wq_context = token(2);
    attr.pd = (&raw mut world.wq).cast();
    create!();
    assert_eq!(
        (world.wq.wq_context, world.wq.events_completed),
        (token(2), 0)
    );
}
