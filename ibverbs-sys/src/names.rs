//! Names defined by the C preprocessor: aliases of kernel types and values, and constants of anonymous enums.
//!
//! Each constant has the type required at its place of use.

use crate::{
    ib_uverbs_access_flags, ib_uverbs_advise_mr_flag, ib_uverbs_query_port_flags, ibv_access_flags,
    ibv_create_cq_wc_flags,
};
use core::ffi::{c_uint, c_void};
use core::ptr;

pub use crate::bindings::{
    ib_uverbs_advise_mr_advice as ibv_advise_mr_advice,
    ib_uverbs_flow_action_esp as ibv_flow_action_esp,
    ib_uverbs_flow_action_esp_encap as ibv_flow_action_esp_encap,
    ib_uverbs_flow_action_esp_flags as ibv_flow_action_esp_flags,
    ib_uverbs_flow_action_esp_keymat as ibv_flow_action_esp_keymat,
    ib_uverbs_flow_action_esp_keymat_aes_gcm as ibv_flow_action_esp_keymat_aes_gcm,
    ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo as ibv_flow_action_esp_keymat_aes_gcm_iv_algo,
    ib_uverbs_flow_action_esp_replay as ibv_flow_action_esp_replay,
    ib_uverbs_flow_action_esp_replay_bmp as ibv_flow_action_esp_replay_bmp,
};

/// Aliases the values of a kernel enum under libibverbs' names.
macro_rules! renamed {
    ($($enum:ident { $($name:ident = $kernel:ident;)* })*) => {$(
        impl $enum {$(
            #[doc = concat!("`", stringify!($kernel), "`")]
            pub const $name: Self = Self::$kernel;
        )*}
    )*};
}

renamed! {
    ibv_advise_mr_advice {
        IBV_ADVISE_MR_ADVICE_PREFETCH = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
    }
    ibv_flow_action_esp_flags {
        IBV_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO;
        IBV_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD;
        IBV_FLOW_ACTION_ESP_FLAGS_TUNNEL = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL;
        IBV_FLOW_ACTION_ESP_FLAGS_TRANSPORT = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT;
        IBV_FLOW_ACTION_ESP_FLAGS_DECRYPT = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT;
        IBV_FLOW_ACTION_ESP_FLAGS_ENCRYPT = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT;
        IBV_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW = IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW;
    }
    ibv_flow_action_esp_keymat {
        IBV_FLOW_ACTION_ESP_KEYMAT_AES_GCM = IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM;
    }
    ibv_flow_action_esp_keymat_aes_gcm_iv_algo {
        IBV_FLOW_ACTION_IV_ALGO_SEQ = IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ;
    }
    ibv_flow_action_esp_replay {
        IBV_FLOW_ACTION_ESP_REPLAY_NONE = IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE;
        IBV_FLOW_ACTION_ESP_REPLAY_BMP = IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP;
    }
}

impl ibv_access_flags {
    /// Mask of the access flags that a kernel may ignore.
    pub const IBV_ACCESS_OPTIONAL_RANGE: Self =
        Self(ib_uverbs_access_flags::IB_UVERBS_ACCESS_OPTIONAL_RANGE.0);
}

/// Flag of [`ibv_advise_mr`](crate::ibv_advise_mr): return after the advice has been carried out.
pub const IBV_ADVISE_MR_FLAG_FLUSH: u32 =
    ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;

/// Flag of `ibv_port_attr::flags`: every packet carries a GRH.
#[expect(clippy::cast_possible_truncation, reason = "the field has 8 bits")]
pub const IBV_QPF_GRH_REQUIRED: u8 = ib_uverbs_query_port_flags::IB_UVERBS_QPF_GRH_REQUIRED.0 as u8;

/// `ibv_port_attr::link_layer` not reported by the provider.
pub const IBV_LINK_LAYER_UNSPECIFIED: u8 = 0;
/// `ibv_port_attr::link_layer` of InfiniBand.
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
/// `ibv_port_attr::link_layer` of Ethernet: RoCE and iWARP.
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// Bit number of `ibv_wc_flags::IBV_WC_IP_CSUM_OK`.
pub const IBV_WC_IP_CSUM_OK_SHIFT: c_uint = 2;

/// Completion fields supported by every provider.
pub const IBV_WC_STANDARD_FLAGS: u64 = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SRC_QP.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SLID.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_SL.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64;

/// Completion fields known to the library.
pub const IBV_CREATE_CQ_SUP_WC_FLAGS: u64 = IBV_WC_STANDARD_FLAGS
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_CVLAN.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_FLOW_TAG.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_TM_INFO.0 as u64
    | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;

/// Maximum length of a device name, including the NUL.
pub const IBV_SYSFS_NAME_MAX: usize = 64;
/// Maximum length of a device path, including the NUL.
pub const IBV_SYSFS_PATH_MAX: usize = 256;

/// Return value of a parent domain's allocator: let the provider allocate.
pub const IBV_ALLOCATOR_USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

/// Length of an Ethernet address in bytes.
pub const ETHERNET_LL_SIZE: usize = 6;
