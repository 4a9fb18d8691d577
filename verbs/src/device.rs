//! The RDMA devices of this machine, listed and open.
//!
//! | item | is |
//! |---|---|
//! | [`devices`], [`DeviceList`], [`Device`] | the devices of this machine |
//! | [`Context`] | an open device |
//! | [`check_environment`] | refusal of an environment in which libibverbs hides failures |
//! | [`Guid`], [`NodeType`], [`TransportType`] | the identity and the kind of a device |
//!
//! # References
//! [ibv_get_device_list(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html),
//! [ibv_open_device(3)](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html),
//! [ibv_get_device_guid(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_guid.3.html)

use std::{ffi::CStr, fmt, io, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use crate::{
    error::{Error, Result, cvt_ptr},
    fd::above_standard,
    hint::{self, Machine},
    masked_failures,
};

pub use crate::{
    context::Context,
    masked_failures::check_environment,
    node::{NodeType, TransportType},
};

/// `ibv_get_device_list`—Lists the RDMA devices of this machine.
///
/// The list is empty on a machine without RDMA devices, or without RDMA in the kernel.
///
/// # Errors
/// - `ENOMEM`: out of memory.
/// - `EPERM`: sysfs cannot be read.
///
/// # Examples
/// ```
/// # let _fabric = doctest::host();
/// for device in &verbs::devices()? {
///     println!("{}: {}", device.name(), device.guid());
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_get_device_list(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_list.3.html)
#[doc(alias = "ibv_get_device_list")]
pub fn devices() -> Result<DeviceList> {
    masked_failures::note();
    let mut count = 0;
    // SAFETY: `count` is a valid place for the number of devices; C keeps no pointer to `count`.
    let list = unsafe { ffi::ibv_get_device_list(&raw mut count) };
    let list = match cvt_ptr("ibv_get_device_list", list) {
        Ok(list) => list,
        // No RDMA in this kernel means no devices, not a failure.
        Err(err) if err.raw_os_error() == Some(libc::ENOSYS) => return Ok(DeviceList::default()),
        Err(err) => return Err(err),
    };
    let list = Arc::new(RawList(list));
    let devices = (0..usize::try_from(count).unwrap_or(0))
        .filter_map(|i| {
            // SAFETY: `i` is below the count returned by C for this list.
            let entry = unsafe { list.0.add(i) };
            // SAFETY: the entry is inside the list, which is live and never written.
            let raw = unsafe { *entry.as_ptr() };
            Some(Device {
                raw: NonNull::new(raw)?,
                _list: Arc::clone(&list),
            })
        })
        .collect();
    Ok(DeviceList { devices })
}

/// A device list allocated by libibverbs. The devices may be used until the list is freed.
struct RawList(NonNull<*mut ffi::ibv_device>);

// SAFETY: libibverbs never changes a device list after returning one; reading and freeing are
// allowed from any thread.
unsafe impl Send for RawList {}
// SAFETY: see `Send`; shared access only reads.
unsafe impl Sync for RawList {}

impl Drop for RawList {
    fn drop(&mut self) {
        // SAFETY: the list came from `ibv_get_device_list` and is freed once, here; every `Device`
        // with a pointer into the list holds the `Arc` of the list.
        unsafe { ffi::ibv_free_device_list(self.0.as_ptr()) };
    }
}

/// The devices found by [`devices`], in libibverbs' order.
#[doc(alias = "ibv_free_device_list")]
#[derive(Debug, Default)]
pub struct DeviceList {
    devices: Vec<Device>,
}

impl DeviceList {
    /// The number of devices.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// Whether there is no device.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// The devices.
    pub fn iter(&self) -> std::slice::Iter<'_, Device> {
        self.devices.iter()
    }

    /// The device with this name, for example `rxe0`.
    pub fn find(&self, name: &str) -> Option<&Device> {
        self.iter().find(|device| device.name() == name)
    }

    /// The first device.
    ///
    /// # Errors
    /// - `NotFound`: there is none. The error has a hint: for example, the kernel module to load.
    pub fn first(&self) -> Result<&Device> {
        self.iter().next().ok_or_else(|| {
            let reason = "this machine has no RDMA device";
            Error::refused("ibv_get_device_list", io::ErrorKind::NotFound, reason)
                .hint(hint::unknown_device(&[], &Machine::now()))
        })
    }

    /// The device with this name, like [`find`](Self::find); the error lists the existing devices.
    ///
    /// # Errors
    /// - `NotFound`: no device has the name, or there is none at all.
    ///
    /// # Examples
    /// ```
    /// # let _fabric = doctest::host();
    /// # let name = "softnic0";
    /// let ctx = verbs::devices()?.by_name(name)?.open()?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    pub fn by_name(&self, name: &str) -> Result<&Device> {
        self.find(name).ok_or_else(|| {
            let names: Vec<_> = self.iter().map(Device::name).collect();
            let reason = "no RDMA device has this name";
            Error::refused("ibv_open_device", io::ErrorKind::NotFound, reason)
                .detail(name.to_owned())
                .hint(hint::unknown_device(&names, &Machine::now()))
        })
    }
}

impl<'a> IntoIterator for &'a DeviceList {
    type Item = &'a Device;
    type IntoIter = std::slice::Iter<'a, Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for DeviceList {
    type Item = Device;
    type IntoIter = std::vec::IntoIter<Device>;

    fn into_iter(self) -> Self::IntoIter {
        self.devices.into_iter()
    }
}

/// One RDMA device, not yet opened.
pub struct Device {
    raw: NonNull<ffi::ibv_device>,
    /// Keeps `raw` valid.
    _list: Arc<RawList>,
}

// SAFETY: libibverbs keeps devices in an internal list under a lock; the calls below only read
// fields set before the device is published.
unsafe impl Send for Device {}
// SAFETY: see `Send`.
unsafe impl Sync for Device {}

impl Device {
    /// `ibv_get_device_name`—The device's name, for example `mlx5_0` or `rxe0`.
    ///
    /// # References
    /// [ibv_get_device_name(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_name.3.html)
    #[doc(alias = "ibv_get_device_name")]
    pub fn name(&self) -> &str {
        // SAFETY: `self.raw` is a device of the list kept alive by `self`.
        let name = unsafe { ffi::ibv_get_device_name(self.raw.as_ptr()) };
        // SAFETY: the name is an array inside the device, always terminated, and never changes.
        let name = unsafe { CStr::from_ptr(name) };
        // The kernel allows no other names than ASCII ones.
        name.to_str().unwrap_or("")
    }

    /// `ibv_get_device_guid`—The globally unique identifier of the node.
    ///
    /// # References
    /// [ibv_get_device_guid(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_guid.3.html)
    #[doc(alias = "ibv_get_device_guid")]
    pub fn guid(&self) -> Guid {
        // SAFETY: `self.raw` is a device of the list kept alive by `self`.
        let guid = unsafe { ffi::ibv_get_device_guid(self.raw.as_ptr()) };
        Guid(guid.to_ne().to_be_bytes())
    }

    /// `ibv_get_device_index`—The kernel's number for the device, constant over renames; `None`
    /// where the kernel reports none.
    ///
    /// # References
    /// [ibv_get_device_index(3)](https://man7.org/linux/man-pages/man3/ibv_get_device_index.3.html)
    #[doc(alias = "ibv_get_device_index")]
    pub fn index(&self) -> Option<u32> {
        // SAFETY: `self.raw` is a device of the list kept alive by `self`.
        let index = unsafe { ffi::ibv_get_device_index(self.raw.as_ptr()) };
        index.try_into().ok()
    }

    /// The role of the device in its network.
    pub fn node_type(&self) -> NodeType {
        // SAFETY: `self.raw` is a device of the list kept alive by `self`, and its type never
        // changes.
        let node_type = unsafe { (*self.raw.as_ptr()).node_type };
        NodeType(node_type.0)
    }

    /// The family of transports of the device.
    pub fn transport_type(&self) -> TransportType {
        // SAFETY: `self.raw` is a device of the list kept alive by `self`, and its type never
        // changes.
        let transport = unsafe { (*self.raw.as_ptr()).transport_type };
        TransportType(transport.0)
    }

    /// `ibv_open_device`—Opens the device for use.
    ///
    /// # Errors
    /// - `EACCES` or `EPERM`: no right to open the device's `uverbs` file.
    /// - `ENOMEM`: out of memory, often a limit on locked memory.
    /// - `Unsupported`: the environment variable `RDMAV_ALLOW_DISASSOC_DESTROY` or `MLX4_DEVICE_FATAL_CLEANUP` is set,
    ///   which hides failures of destroying calls. Unset it before the program starts.
    ///
    /// # References
    /// [ibv_open_device(3)](https://man7.org/linux/man-pages/man3/ibv_open_device.3.html)
    #[doc(alias = "ibv_open_device")]
    pub fn open(&self) -> Result<Context> {
        check_environment("ibv_open_device")?;
        // SAFETY: `self.raw` is a device of the list kept alive by `self`.
        let open = || unsafe { ffi::ibv_open_device(self.raw.as_ptr()) };
        let raw = above_standard(open);
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::last_os("ibv_open_device").detail(self.name().to_owned()))?;
        // SAFETY: the context is fresh, open, and has no other owner; the environment was checked.
        Ok(unsafe { Context::from_open(raw) })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("guid", &self.guid())
            .finish()
    }
}

/// A 64-bit globally unique identifier, shown as `0011:2233:4455:6677`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(
    /// The bytes, in network order.
    pub [u8; 8],
);

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.0;
        write!(
            f,
            "{a:02x}{b:02x}:{c:02x}{d:02x}:{e:02x}{g:02x}:{h:02x}{i:02x}"
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guid_display_has_colons() {
        let guid = Guid([0x50, 0x54, 0, 0xff, 0xfe, 0x12, 0x34, 0x56]);
        assert_eq!(guid.to_string(), "5054:00ff:fe12:3456");
    }
}
