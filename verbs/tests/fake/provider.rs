//! Scripted devices of softnic, with the types of `verbs`.

use std::ops::Deref;

use ibverbs_sys as ffi;
use softnic::{Call, Fabric, Host, When, scripted};
use verbs::{Context, WcStatus, cq::CqHandle, qp::QpNum};

pub(crate) use scripted::{
    Extra, PARENT_DOMAIN_BLOCK, Place, PostedReceive, PostedSend, Properties, wc,
};

/// A scripted device, on the host of this thread. The drop checks its records.
pub(crate) struct Fake {
    device: scripted::Device,
    name: String,
    host: Host,
}

thread_local! {
    /// A network of one host, with the devices of this thread's tests.
    static NETWORK: (Fabric, Host) = {
        let fabric = Fabric::manual(0);
        let host = fabric.host("10.9.0.1".parse().unwrap());
        host.stay();
        (fabric, host)
    };
}

impl Deref for Fake {
    type Target = scripted::Device;

    fn deref(&self) -> &scripted::Device {
        &self.device
    }
}

impl Fake {
    /// A device called `fake0`, in the list of this thread.
    pub(crate) fn new() -> Self {
        Self::named("fake0")
    }

    /// A device with this name, in the list of this thread.
    pub(crate) fn named(name: &str) -> Self {
        let host = NETWORK.with(|(_, host)| host.clone());
        Self {
            device: host.add_scripted(name),
            name: name.to_owned(),
            host,
        }
    }

    /// Opens the device, in the way every program does.
    pub(crate) fn open(&self) -> Context {
        let devices = self.host.run(|| verbs::devices().unwrap());
        devices.find(&self.name).unwrap().open().unwrap()
    }

    /// Lets the next call of a function fail.
    pub(crate) fn fail(&self, call: Call, errno: i32) {
        self.fail_after(0, call, errno);
    }

    /// Lets a call of a function fail after `successes` successful calls.
    pub(crate) fn fail_after(&self, successes: usize, call: Call, errno: i32) {
        self.device
            .fail(call, When::Nth(successes as u64 + 1), errno);
    }

    pub(crate) fn complete_send(&self, qp_num: QpNum, status: WcStatus) {
        self.complete_send_at(qp_num, 0, status);
    }

    pub(crate) fn complete_send_at(&self, qp_num: QpNum, index: usize, status: WcStatus) {
        let status = ffi::ibv_wc_status(status.0);
        self.device.complete_send_at(qp_num.get(), index, status);
    }

    pub(crate) fn fail_tagged(&self, srq: *mut ffi::ibv_srq, status: WcStatus, flags: u32) {
        let status = ffi::ibv_wc_status(status.0);
        self.device.fail_tagged(srq, status, flags);
    }

    pub(crate) fn deliver(&self, sges: &[ffi::ibv_sge], message: &[u8]) -> WcStatus {
        // SAFETY: the tests name the elements of receives in flight, or memory that is not registered.
        let status = unsafe { self.device.deliver(sges, message) };
        WcStatus(status.0)
    }

    pub(crate) fn complete_receive_with(
        &self,
        qp_num: QpNum,
        message: &[u8],
        change: impl FnOnce(&mut ffi::ibv_wc),
    ) {
        // SAFETY: the tests change the opcode, the flags, and the length within the receive, whose bytes are initialized.
        unsafe {
            self.device
                .complete_receive_with(qp_num.get(), message, change);
        }
    }

    pub(crate) fn push(&self, cq: &CqHandle, wc: ffi::ibv_wc) {
        self.push_extended(cq.as_raw(), wc, Extra::default());
    }

    pub(crate) fn push_extended(&self, cq: *mut ffi::ibv_cq, wc: ffi::ibv_wc, extra: Extra) {
        // SAFETY: the tests end requests in flight, which the device ends too, or name none: `verbs` checks both.
        unsafe { self.device.push_extended(cq, wc, extra) };
    }
}

macro_rules! forward {
    ($($name:ident($id:ident: $id_type:ty => $raw:ident $(, $arg:ident: $type:ty)*) $(-> $ret:ty)?;)*) => {
        impl Fake {$(
            pub(crate) fn $name(&self, $id: $id_type $(, $arg: $type)*) $(-> $ret)? {
                self.device.$name($id.$raw() $(, $arg)*)
            }
        )*}
    };
}

forward! {
    sends(qp: QpNum => get) -> Vec<PostedSend>;
    receives(qp: QpNum => get) -> Vec<PostedReceive>;
    complete_receive(qp: QpNum => get, message: &[u8]);
    complete_xrc(qp: QpNum => get, srq: *mut ffi::ibv_srq, message: &[u8], imm_data: Option<u32>);
    flush(qp: QpNum => get);
    rx_hash(qp: QpNum => get) -> (u8, Vec<u8>, u64);
    set_qp_state(qp: QpNum => get, to: ffi::ibv_qp_state);
    change_qp(qp: QpNum => get, change: impl FnOnce(&mut ffi::ibv_qp_attr));
    rate_limit(qp: QpNum => get) -> (u32, u32, u16);
    create_flags(qp: QpNum => get) -> u32;
    qp_state(qp: QpNum => get) -> ffi::ibv_qp_state;
    poll_returns(cq: &CqHandle => as_raw, ret: i32);
    moderation(cq: &CqHandle => as_raw) -> (u16, u16);
    cq_flags(cq: &CqHandle => as_raw) -> u32;
}
