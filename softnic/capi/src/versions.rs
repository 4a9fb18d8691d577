//! Functions for providers under the versions of each rdma-core. A program or a vendor's library needs the version of its own
//! release.
//!
//! A version script gives each symbol one version, that of Debian 12. Here, each function has a symbol with each further
//! version, which jumps to the function.

use std::arch::global_asm;

use softnic_capi::functions_for_providers;

/// The jump to a function.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($name:ident) => {
        concat!("jmp ", stringify!($name), "@PLT")
    };
}

/// The jump to a function.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($name:ident) => {
        concat!("b ", stringify!($name))
    };
}

/// Defines functions with a version.
macro_rules! jumps {
    ($version:literal: $($name:ident)*) => {
        $(global_asm!(
            concat!(".globl ", stringify!($name), "_", $version),
            concat!(".type ", stringify!($name), "_", $version, ", %function"),
            concat!(stringify!($name), "_", $version, ":"),
            jump!($name),
            concat!(
                ".symver ", stringify!($name), "_", $version, ", ", stringify!($name), "@IBVERBS_PRIVATE_", $version,
            ),
        );)*
    };
}

/// Defines all functions with a version, and the setting `verbs_allow_disassociate_destroy`, which has no effect.
macro_rules! version {
    ($version:literal ignored { $($ignored:ident)* } without_object { $($object:ident)* } failing { $($failing:ident)* }) => {
        jumps! { $version:
            $($ignored)* $($object)* $($failing)*
            __ioctl_final_num_attrs
            ibv_query_gid_type
            ibv_read_ibdev_sysfs_file
            ibv_wr_opcode_str
        }
        global_asm!(
            concat!(".globl register_", $version),
            concat!(".type register_", $version, ", %function"),
            concat!("register_", $version, ":"),
            jump!(verbs_register_driver_34),
            concat!(".symver register_", $version, ", verbs_register_driver_", $version, "@IBVERBS_PRIVATE_", $version),
        );
        global_asm!(
            ".pushsection .bss",
            concat!(".globl allow_", $version),
            concat!(".type allow_", $version, ", %object"),
            concat!(".size allow_", $version, ", 1"),
            concat!("allow_", $version, ": .zero 1"),
            concat!(".symver allow_", $version, ", verbs_allow_disassociate_destroy@IBVERBS_PRIVATE_", $version),
            ".popsection",
        );
    };
}

functions_for_providers! { version! "57" }
functions_for_providers! { version! "59" }
functions_for_providers! { version! "64" }
functions_for_providers! { version! "65" }
