//! The functions of libmlx5, on devices without a card and on those of cards with the driver mlx5: queue pairs of the dynamically
//! connected transport.

use std::{ffi::c_void, mem::offset_of};

use ibverbs_sys as ffi;
use mlx5_sys::{
    mlx5dv_context_attr, mlx5dv_dc_type, mlx5dv_qp_ex, mlx5dv_qp_init_attr,
    mlx5dv_qp_init_attr_mask,
};

use super::{
    device, null,
    qp::{Qp, Vendor},
    qp_ex,
};
use crate::engine::QpKind;

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_is_supported(raw: *mut ffi::ibv_device) -> bool {
    // SAFETY: a listed device of the caller's.
    let port = unsafe { device::port(raw) };
    port.is_some_and(|port| qp_ex::is_of_vendor(port, QpKind::Dci))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_open_device(
    raw: *mut ffi::ibv_device,
    attr: *mut mlx5dv_context_attr,
) -> *mut ffi::ibv_context {
    // SAFETY: a listed device of the caller's.
    if !unsafe { mlx5dv_is_supported(raw) } {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's attributes, or null for none.
    if let Some(attr) = unsafe { attr.as_ref() }
        && (attr.flags != 0 || attr.comp_mask != 0)
    {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: a listed device of the caller's.
    unsafe { device::ibv_open_device(raw) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_qp(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
    mlx5: *mut mlx5dv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    // SAFETY: an open context.
    if !unsafe { qp_ex::serves(ctx, QpKind::Dci) } {
        return null(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller's attributes.
    let attr = unsafe { &mut *attr };
    // SAFETY: the caller's attributes, or null for none.
    let mlx5 = unsafe { mlx5.as_ref() };
    let comp_mask = mlx5.map_or(0, |mlx5| mlx5.comp_mask);
    let is_dynamic =
        comp_mask == u64::from(mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DC.0);
    let is_driver = attr.qp_type == ffi::ibv_qp_type::IBV_QPT_DRIVER;
    if comp_mask != 0 && !is_dynamic || is_driver != is_dynamic {
        return null(libc::EINVAL);
    }
    let vendor = match mlx5.filter(|_| is_dynamic).map(vendor) {
        Some(Some(vendor)) if fits(vendor, attr) => Some(vendor),
        None => None,
        _ => return null(libc::EINVAL),
    };
    // SAFETY: an open context, and live objects of the caller's.
    unsafe { qp_ex::create(ctx, attr, vendor) }
}

/// The kind of a dynamically connected queue pair, and a target's key.
fn vendor(mlx5: &mlx5dv_qp_init_attr) -> Option<Vendor> {
    let dc = &mlx5.dc_init_attr;
    Some(match dc.dc_type {
        mlx5dv_dc_type::MLX5DV_DCTYPE_DCI => Vendor {
            kind: QpKind::Dci,
            dct_key: 0,
        },
        mlx5dv_dc_type::MLX5DV_DCTYPE_DCT => Vendor {
            kind: QpKind::Dct,
            // SAFETY: the field of a target.
            dct_key: unsafe { dc.__bindgen_anon_1.dct_access_key },
        },
        _ => return None,
    })
}

/// Whether a queue pair may have these attributes: an initiator has no receives, and a target has those of a shared queue alone.
fn fits(vendor: Vendor, attr: &ffi::ibv_qp_init_attr_ex) -> bool {
    if vendor.kind == QpKind::Dci {
        return attr.cap.max_recv_wr == 0 && attr.cap.max_recv_sge == 0;
    }
    let only_pd = ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    attr.comp_mask == only_pd && !attr.srq.is_null() && !attr.recv_cq.is_null()
}

/// The part of every queue pair for libmlx5.
pub(super) fn part() -> mlx5dv_qp_ex {
    let mut part = mlx5dv_qp_ex::zeroed();
    part.wr_set_dc_addr = Some(set_dc_addr);
    part
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_qp_ex_from_ibv_qp_ex(raw: *mut ffi::ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    raw.wrapping_byte_add(offset_of!(Qp, mlx5)).cast()
}

unsafe extern "C" fn set_dc_addr(
    part: *mut mlx5dv_qp_ex,
    ah: *mut ffi::ibv_ah,
    number: u32,
    key: u64,
) {
    let raw: *mut c_void = part.wrapping_byte_sub(offset_of!(Qp, mlx5)).cast();
    let address = (ah.expose_provenance(), number, key);
    // SAFETY: the part of a live queue pair.
    unsafe { qp_ex::add(raw.cast(), |posted| posted.datagram = Some(address)) };
}
