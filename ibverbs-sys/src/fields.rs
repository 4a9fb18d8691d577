//! Accessors for fields of C's anonymous unions, and for a field newer than rdma-core 39.

use crate::{
    __be32, ibv_flow_action_esp_encap, ibv_flow_spec, ibv_flow_spec__bindgen_ty_1, ibv_mw,
    ibv_mw_bind_info, ibv_port_attr, ibv_send_wr, ibv_send_wr__bindgen_ty_4__bindgen_ty_1,
    ibv_send_wr__bindgen_ty_4__bindgen_ty_2, ibv_wc,
};
use core::ffi::c_void;

impl ibv_wc {
    /// The immediate data, if `wc_flags` has `IBV_WC_WITH_IMM`.
    #[inline]
    #[must_use]
    pub const fn imm_data(&self) -> __be32 {
        // SAFETY: both fields of the union are 32 bits, so that either is always initialised.
        unsafe { self.__bindgen_anon_1.imm_data }
    }

    /// The key invalidated by the peer, if `wc_flags` has `IBV_WC_WITH_INV`.
    #[inline]
    #[must_use]
    pub const fn invalidated_rkey(&self) -> u32 {
        // SAFETY: both fields of the union are 32 bits, so that either is always initialised.
        unsafe { self.__bindgen_anon_1.invalidated_rkey }
    }
}

impl ibv_send_wr {
    /// Sets the immediate data of a `…_WITH_IMM` operation.
    #[inline]
    pub const fn set_imm_data(&mut self, imm_data: __be32) {
        self.__bindgen_anon_1.imm_data = imm_data;
    }

    /// The immediate data.
    #[inline]
    #[must_use]
    pub const fn imm_data(&self) -> __be32 {
        // SAFETY: both fields of the union are 32 bits, so that either is always initialised.
        unsafe { self.__bindgen_anon_1.imm_data }
    }

    /// Sets the key to invalidate by an `…_INV` operation.
    #[inline]
    pub const fn set_invalidate_rkey(&mut self, rkey: u32) {
        self.__bindgen_anon_1.invalidate_rkey = rkey;
    }

    /// The key to invalidate.
    #[inline]
    #[must_use]
    pub const fn invalidate_rkey(&self) -> u32 {
        // SAFETY: both fields of the union are 32 bits, so that either is always initialised.
        unsafe { self.__bindgen_anon_1.invalidate_rkey }
    }

    /// Sets the window, key and range of an `IBV_WR_BIND_MW` request.
    #[inline]
    pub const fn set_bind_mw(&mut self, mw: *mut ibv_mw, rkey: u32, bind_info: ibv_mw_bind_info) {
        self.__bindgen_anon_2.bind_mw = ibv_send_wr__bindgen_ty_4__bindgen_ty_1 {
            mw,
            rkey,
            bind_info,
        };
    }

    /// Sets the header and segment size of an `IBV_WR_TSO` request.
    #[inline]
    pub const fn set_tso(&mut self, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
        self.__bindgen_anon_2.tso = ibv_send_wr__bindgen_ty_4__bindgen_ty_2 { hdr, hdr_sz, mss };
    }
}

impl ibv_flow_spec {
    /// The specification. Valid fields: `hdr`, and one more according to its type.
    #[inline]
    #[must_use]
    pub const fn spec(&self) -> &ibv_flow_spec__bindgen_ty_1 {
        &self.__bindgen_anon_1
    }

    /// The specification, mutable.
    #[inline]
    pub const fn spec_mut(&mut self) -> &mut ibv_flow_spec__bindgen_ty_1 {
        &mut self.__bindgen_anon_1
    }
}

impl ibv_flow_action_esp_encap {
    /// Sets the filter for the tunnel's header.
    #[inline]
    pub const fn set_val_ptr(&mut self, filter: *mut c_void) {
        self.__bindgen_anon_1.val_ptr = filter;
    }

    /// Sets the next element of the list.
    #[inline]
    pub const fn set_next_ptr(&mut self, next: *mut Self) {
        self.__bindgen_anon_2.next_ptr = next;
    }
}

impl ibv_port_attr {
    /// Active port speed, for speeds without a value of `active_speed`. 0 if the headers of this build or the library
    /// are older than rdma-core 49.
    #[inline]
    #[must_use]
    pub const fn active_speed_ex(&self) -> u32 {
        #[cfg(ibv_active_speed_ex)]
        return self.active_speed_ex;
        #[cfg(not(ibv_active_speed_ex))]
        return 0;
    }
}
