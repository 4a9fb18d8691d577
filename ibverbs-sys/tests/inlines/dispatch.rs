//! Inlines that only forward their arguments to a table slot.

use crate::original::original;
use crate::sample::Sample;
use crate::world::{Outcome, World, called, observe, token};
use ibverbs_sys::*;
use std::ffi::{c_int, c_uint, c_void};

/// Check in C before the call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    /// The context has the slot, and the slot is filled.
    Extended,
    /// The slot is filled.
    Slot,
    /// No check: an empty slot is a jump to address 0 in C.
    Nothing,
    /// No check in C or Rust: libibverbs fills the slot.
    Filled,
}

/// Modifications of a table that remove an extended operation.
const LACKING: [fn(&mut World); 2] = [
    // An old library, whose table ends before every tested slot.
    |world| world.vctx.sz = size_of::<ibv_context>() + size_of::<usize>(),
    // A library without an extended table.
    |world| world.vctx.context.abi_compat = std::ptr::null_mut(),
];

fn compare(
    name: &str,
    check: Check,
    fill: fn(&mut World),
    rust: fn(&mut World) -> String,
    c: fn(&mut World) -> String,
) {
    let mut world = World::new();
    match check {
        Check::Filled => {}
        Check::Nothing => {
            let Outcome {
                returned, calls, ..
            } = observe(|| rust(&mut world));
            let reported = returned == Ok(libc::EOPNOTSUPP.to_string());
            let stopped = returned.is_err_and(|message| message.starts_with(name));
            assert!(
                (reported || stopped) && calls.is_empty(),
                "{name}, empty slot"
            );
        }
        Check::Slot | Check::Extended => {
            let outcome = observe(|| rust(&mut world));
            assert_eq!(outcome, observe(|| c(&mut world)), "{name}, empty slot");
            assert!(outcome.calls.is_empty());
        }
    }

    fill(&mut world);
    let outcome = observe(|| rust(&mut world));
    assert_eq!(outcome, observe(|| c(&mut world)), "{name}, filled slot");
    assert_eq!(outcome.calls.len(), 1, "{name} calls the provider once");

    for lack in LACKING.iter().filter(|_| check == Check::Extended) {
        let mut world = World::new();
        fill(&mut world);
        lack(&mut world);
        let outcome = observe(|| rust(&mut world));
        assert_eq!(outcome, observe(|| c(&mut world)), "{name}, short table");
        assert!(
            outcome.calls.is_empty(),
            "{name} calls what the table lacks"
        );
    }
}

/// One test for each function: name, arguments, and called slot.
macro_rules! cases {
    ($(
        $(#[$attr:meta])*
        $check:ident $name:ident($($arg:ident: $type:ty = |$w:ident| $value:expr),* $(,)?)
            $(-> $ret:ty)? => $($slot:ident).+;
    )*) => {$(
        $(#[$attr])*
        #[cfg_attr(stub, ignore = "needs the headers of libibverbs-dev")]
        #[test]
        fn $name() {
            type Function = unsafe extern "C" fn($($type),*) $(-> $ret)?;

            unsafe extern "C" fn spy($($arg: $type),*) $(-> $ret)? {
                called(stringify!($name), &[$(format!("{:?}", $arg)),*]);
                Sample::sample()
            }

            compare(
                stringify!($name),
                Check::$check,
                |world| world.$($slot).+ = Some(spy),
                |world| {
                    $(let $arg: $type = { let $w = &mut *world; $value };)*
                    // SAFETY: the world outlives the call, and spies dereference no pointer.
                    format!("{:?}", unsafe { ibverbs_sys::$name($($arg),*) })
                },
                |world| {
                    $(let $arg: $type = { let $w = &mut *world; $value };)*
                    let original: Function = original!(stringify!($name));
                    // SAFETY: the world outlives the call, and spies dereference no pointer.
                    format!("{:?}", unsafe { original($($arg),*) })
                },
            );
        }
    )*};
}

cases! {
    Extended ibv_query_rt_values_ex(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        values: *mut ibv_values_ex = |_w| token(1),
    ) -> c_int => vctx.query_rt_values;
    Extended ibv_create_flow(
        qp: *mut ibv_qp = |w| &raw mut w.qp,
        flow: *mut ibv_flow_attr = |_w| token(1),
    ) -> *mut ibv_flow => vctx.ibv_create_flow;
    Extended ibv_destroy_flow(
        flow_id: *mut ibv_flow = |w| &raw mut w.flow,
    ) -> c_int => vctx.ibv_destroy_flow;
    Extended ibv_create_flow_action_esp(
        ctx: *mut ibv_context = |w| &raw mut w.vctx.context,
        esp: *mut ibv_flow_action_esp_attr = |_w| token(1),
    ) -> *mut ibv_flow_action => vctx.create_flow_action_esp;
    Extended ibv_modify_flow_action_esp(
        action: *mut ibv_flow_action = |w| &raw mut w.flow_action,
        esp: *mut ibv_flow_action_esp_attr = |_w| token(1),
    ) -> c_int => vctx.modify_flow_action_esp;
    Extended ibv_destroy_flow_action(
        action: *mut ibv_flow_action = |w| &raw mut w.flow_action,
    ) -> c_int => vctx.destroy_flow_action;
    Extended ibv_open_xrcd(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_xrcd_init_attr = |_w| token(1),
    ) -> *mut ibv_xrcd => vctx.open_xrcd;
    Nothing ibv_close_xrcd(xrcd: *mut ibv_xrcd = |w| &raw mut w.xrcd) -> c_int => vctx.close_xrcd;
    Extended ibv_advise_mr(
        pd: *mut ibv_pd = |w| &raw mut w.pd,
        advice: ibv_advise_mr_advice = |_w| ibv_advise_mr_advice(1),
        flags: u32 = |_w| 2,
        sg_list: *mut ibv_sge = |_w| token(3),
        num_sge: u32 = |_w| 4,
    ) -> c_int => vctx.advise_mr;
    Extended ibv_alloc_null_mr(
        pd: *mut ibv_pd = |w| &raw mut w.pd,
    ) -> *mut ibv_mr => vctx.alloc_null_mr;
    Slot ibv_alloc_mw(
        pd: *mut ibv_pd = |w| &raw mut w.pd,
        mw_type: ibv_mw_type = |_w| ibv_mw_type::IBV_MW_TYPE_2,
    ) -> *mut ibv_mw => vctx.context.ops.alloc_mw;
    Nothing ibv_dealloc_mw(
        mw: *mut ibv_mw = |w| &raw mut w.mw,
    ) -> c_int => vctx.context.ops.dealloc_mw;
    Extended ibv_alloc_dm(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_alloc_dm_attr = |_w| token(1),
    ) -> *mut ibv_dm => vctx.alloc_dm;
    Extended ibv_free_dm(dm: *mut ibv_dm = |w| &raw mut w.dm) -> c_int => vctx.free_dm;
    Nothing ibv_memcpy_to_dm(
        dm: *mut ibv_dm = |w| &raw mut w.dm,
        offset: u64 = |_w| 1,
        host: *const c_void = |_w| token(2),
        length: usize = |_w| 3,
    ) -> c_int => dm.memcpy_to_dm;
    Nothing ibv_memcpy_from_dm(
        host: *mut c_void = |_w| token(1),
        dm: *mut ibv_dm = |w| &raw mut w.dm,
        offset: u64 = |_w| 2,
        length: usize = |_w| 3,
    ) -> c_int => dm.memcpy_from_dm;
    Extended ibv_reg_dm_mr(
        pd: *mut ibv_pd = |w| &raw mut w.pd,
        dm: *mut ibv_dm = |w| &raw mut w.dm,
        offset: u64 = |_w| 1,
        length: usize = |_w| 2,
        access: c_uint = |_w| 3,
    ) -> *mut ibv_mr => vctx.reg_dm_mr;
    Extended ibv_create_cq_ex(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_cq_init_attr_ex = |_w| token(1),
    ) -> *mut ibv_cq_ex => vctx.create_cq_ex;
    Filled ibv_poll_cq(
        cq: *mut ibv_cq = |w| &raw mut w.cq,
        num_entries: c_int = |_w| 1,
        wc: *mut ibv_wc = |_w| token(2),
    ) -> c_int => vctx.context.ops.poll_cq;
    Filled ibv_req_notify_cq(
        cq: *mut ibv_cq = |w| &raw mut w.cq,
        solicited_only: c_int = |_w| 1,
    ) -> c_int => vctx.context.ops.req_notify_cq;
    Extended ibv_modify_cq(
        cq: *mut ibv_cq = |w| &raw mut w.cq,
        attr: *mut ibv_modify_cq_attr = |_w| token(1),
    ) -> c_int => vctx.modify_cq;
    Nothing ibv_start_poll(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
        attr: *mut ibv_poll_cq_attr = |_w| token(1),
    ) -> c_int => cq_ex.start_poll;
    Nothing ibv_next_poll(cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex) -> c_int => cq_ex.next_poll;
    Nothing ibv_end_poll(cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex) => cq_ex.end_poll;
    Nothing ibv_wc_read_opcode(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> ibv_wc_opcode => cq_ex.read_opcode;
    Nothing ibv_wc_read_vendor_err(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u32 => cq_ex.read_vendor_err;
    Nothing ibv_wc_read_byte_len(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u32 => cq_ex.read_byte_len;
    Nothing ibv_wc_read_imm_data(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> __be32 => cq_ex.read_imm_data;
    Nothing ibv_wc_read_qp_num(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u32 => cq_ex.read_qp_num;
    Nothing ibv_wc_read_src_qp(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u32 => cq_ex.read_src_qp;
    Nothing ibv_wc_read_wc_flags(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> c_uint => cq_ex.read_wc_flags;
    Nothing ibv_wc_read_slid(cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex) -> u32 => cq_ex.read_slid;
    Nothing ibv_wc_read_sl(cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex) -> u8 => cq_ex.read_sl;
    Nothing ibv_wc_read_dlid_path_bits(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u8 => cq_ex.read_dlid_path_bits;
    Nothing ibv_wc_read_completion_ts(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u64 => cq_ex.read_completion_ts;
    Nothing ibv_wc_read_completion_wallclock_ns(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u64 => cq_ex.read_completion_wallclock_ns;
    Nothing ibv_wc_read_cvlan(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u16 => cq_ex.read_cvlan;
    Nothing ibv_wc_read_flow_tag(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
    ) -> u32 => cq_ex.read_flow_tag;
    Nothing ibv_wc_read_tm_info(
        cq: *mut ibv_cq_ex = |w| &raw mut w.cq_ex,
        info: *mut ibv_wc_tm_info = |_w| token(1),
    ) => cq_ex.read_tm_info;
    Extended ibv_get_srq_num(
        srq: *mut ibv_srq = |w| &raw mut w.srq,
        number: *mut u32 = |_w| token(1),
    ) -> c_int => vctx.get_srq_num;
    Filled ibv_post_srq_recv(
        srq: *mut ibv_srq = |w| &raw mut w.srq,
        wr: *mut ibv_recv_wr = |_w| token(1),
        bad_wr: *mut *mut ibv_recv_wr = |_w| token(2),
    ) -> c_int => vctx.context.ops.post_srq_recv;
    Extended ibv_open_qp(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_qp_open_attr = |_w| token(1),
    ) -> *mut ibv_qp => vctx.open_qp;
    Extended ibv_modify_qp_rate_limit(
        qp: *mut ibv_qp = |w| &raw mut w.qp,
        attr: *mut ibv_qp_rate_limit_attr = |_w| token(1),
    ) -> c_int => vctx.modify_qp_rate_limit;
    Filled ibv_post_send(
        qp: *mut ibv_qp = |w| &raw mut w.qp,
        wr: *mut ibv_send_wr = |_w| token(1),
        bad_wr: *mut *mut ibv_send_wr = |_w| token(2),
    ) -> c_int => vctx.context.ops.post_send;
    Filled ibv_post_recv(
        qp: *mut ibv_qp = |w| &raw mut w.qp,
        wr: *mut ibv_recv_wr = |_w| token(1),
        bad_wr: *mut *mut ibv_recv_wr = |_w| token(2),
    ) -> c_int => vctx.context.ops.post_recv;
    Nothing ibv_wr_atomic_cmp_swp(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
        compare: u64 = |_w| 3,
        swap: u64 = |_w| 4,
    ) => qp_ex.wr_atomic_cmp_swp;
    Nothing ibv_wr_atomic_fetch_add(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
        add: u64 = |_w| 3,
    ) => qp_ex.wr_atomic_fetch_add;
    Nothing ibv_wr_bind_mw(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        mw: *mut ibv_mw = |w| &raw mut w.mw,
        rkey: u32 = |_w| 1,
        info: *const ibv_mw_bind_info = |_w| token(2),
    ) => qp_ex.wr_bind_mw;
    Nothing ibv_wr_local_inv(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
    ) => qp_ex.wr_local_inv;
    Nothing ibv_wr_rdma_read(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
    ) => qp_ex.wr_rdma_read;
    Nothing ibv_wr_rdma_write(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
    ) => qp_ex.wr_rdma_write;
    Nothing ibv_wr_rdma_write_imm(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
        imm_data: __be32 = |_w| __be32(3),
    ) => qp_ex.wr_rdma_write_imm;
    Nothing ibv_wr_send(qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex) => qp_ex.wr_send;
    Nothing ibv_wr_send_imm(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        imm_data: __be32 = |_w| __be32(1),
    ) => qp_ex.wr_send_imm;
    Nothing ibv_wr_send_inv(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
    ) => qp_ex.wr_send_inv;
    Nothing ibv_wr_send_tso(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        hdr: *mut c_void = |_w| token(1),
        hdr_sz: u16 = |_w| 2,
        mss: u16 = |_w| 3,
    ) => qp_ex.wr_send_tso;
    Nothing ibv_wr_set_ud_addr(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        ah: *mut ibv_ah = |_w| token(1),
        remote_qpn: u32 = |_w| 2,
        remote_qkey: u32 = |_w| 3,
    ) => qp_ex.wr_set_ud_addr;
    Nothing ibv_wr_set_xrc_srqn(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        remote_srqn: u32 = |_w| 1,
    ) => qp_ex.wr_set_xrc_srqn;
    Nothing ibv_wr_set_inline_data(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        addr: *mut c_void = |_w| token(1),
        length: usize = |_w| 2,
    ) => qp_ex.wr_set_inline_data;
    Nothing ibv_wr_set_inline_data_list(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        num_buf: usize = |_w| 1,
        list: *const ibv_data_buf = |_w| token(2),
    ) => qp_ex.wr_set_inline_data_list;
    Nothing ibv_wr_set_sge(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        lkey: u32 = |_w| 1,
        addr: u64 = |_w| 2,
        length: u32 = |_w| 3,
    ) => qp_ex.wr_set_sge;
    Nothing ibv_wr_set_sge_list(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        num_sge: usize = |_w| 1,
        list: *const ibv_sge = |_w| token(2),
    ) => qp_ex.wr_set_sge_list;
    Nothing ibv_wr_start(qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex) => qp_ex.wr_start;
    Nothing ibv_wr_complete(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
    ) -> c_int => qp_ex.wr_complete;
    Nothing ibv_wr_abort(qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex) => qp_ex.wr_abort;
    #[cfg(ibv_atomic_write)]
    Nothing ibv_wr_atomic_write(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
        data: *const c_void = |_w| token(3),
    ) => qp_ex.wr_atomic_write;
    #[cfg(ibv_flush)]
    Nothing ibv_wr_flush(
        qp: *mut ibv_qp_ex = |w| &raw mut w.qp_ex,
        rkey: u32 = |_w| 1,
        remote_addr: u64 = |_w| 2,
        len: usize = |_w| 3,
        placement: u8 = |_w| 4,
        level: u8 = |_w| 5,
    ) => qp_ex.wr_flush;
    Extended ibv_alloc_td(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_td_init_attr = |_w| token(1),
    ) -> *mut ibv_td => vctx.alloc_td;
    Extended ibv_dealloc_td(td: *mut ibv_td = |w| &raw mut w.td) -> c_int => vctx.dealloc_td;
    Extended ibv_alloc_parent_domain(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_parent_domain_init_attr = |_w| token(1),
    ) -> *mut ibv_pd => vctx.alloc_parent_domain;
    Nothing ibv_post_wq_recv(
        wq: *mut ibv_wq = |w| &raw mut w.wq,
        wr: *mut ibv_recv_wr = |_w| token(1),
        bad_wr: *mut *mut ibv_recv_wr = |_w| token(2),
    ) -> c_int => wq.post_recv;
    Extended ibv_modify_wq(
        wq: *mut ibv_wq = |w| &raw mut w.wq,
        attr: *mut ibv_wq_attr = |_w| token(1),
    ) -> c_int => vctx.modify_wq;
    Extended ibv_destroy_wq(wq: *mut ibv_wq = |w| &raw mut w.wq) -> c_int => vctx.destroy_wq;
    Extended ibv_create_rwq_ind_table(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_rwq_ind_table_init_attr = |_w| token(1),
    ) -> *mut ibv_rwq_ind_table => vctx.create_rwq_ind_table;
    Extended ibv_destroy_rwq_ind_table(
        table: *mut ibv_rwq_ind_table = |w| &raw mut w.rwq_ind_table,
    ) -> c_int => vctx.destroy_rwq_ind_table;
    Extended ibv_create_counters(
        context: *mut ibv_context = |w| &raw mut w.vctx.context,
        attr: *mut ibv_counters_init_attr = |_w| token(1),
    ) -> *mut ibv_counters => vctx.create_counters;
    Extended ibv_destroy_counters(
        counters: *mut ibv_counters = |w| &raw mut w.counters,
    ) -> c_int => vctx.destroy_counters;
    Extended ibv_attach_counters_point_flow(
        counters: *mut ibv_counters = |w| &raw mut w.counters,
        attr: *mut ibv_counter_attach_attr = |_w| token(1),
        flow: *mut ibv_flow = |w| &raw mut w.flow,
    ) -> c_int => vctx.attach_counters_point_flow;
    Extended ibv_read_counters(
        counters: *mut ibv_counters = |w| &raw mut w.counters,
        values: *mut u64 = |_w| token(1),
        number: u32 = |_w| 2,
        flags: u32 = |_w| 3,
    ) -> c_int => vctx.read_counters;
}
