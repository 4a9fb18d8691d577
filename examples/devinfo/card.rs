//! All attributes of one device.

use std::fs;

use anyhow::{Result, bail};
use verbs::{
    Device,
    attr::{DeviceAttr, GidEntry, PortAttr},
    device::{Guid, TransportType},
};

/// A device.
#[derive(Debug)]
pub struct Card {
    /// Device name.
    pub name: String,
    /// Transport family.
    pub transport: TransportType,
    /// Node GUID.
    pub node_guid: Guid,
    /// Board name, if the driver reports one.
    pub board_id: Option<String>,
    /// Device attributes.
    pub attr: DeviceAttr,
    /// Number of completion vectors.
    pub num_comp_vectors: u32,
    /// All ports, or the selected one.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Debug)]
pub struct Port {
    /// Port number, starting at 1.
    pub number: u8,
    /// Port attributes.
    pub attr: PortAttr,
    /// GID table entries.
    pub gids: Vec<GidEntry>,
}

impl Card {
    /// Reads the attributes of a device with all ports or one port.
    ///
    /// # Errors
    /// The device cannot be opened or queried, or the port does not exist.
    pub fn read(device: &Device, port: Option<u8>) -> Result<Self> {
        let ctx = device.open()?;
        let attr = ctx.query_device()?;
        let all = attr.port_nums();
        let numbers = match port {
            Some(number) if number > *all.end() => bail!("Invalid port requested for device"),
            Some(number) => number..=number,
            None => all,
        };
        let table = ctx.query_gid_table()?;
        let mut ports = Vec::new();
        for number in numbers {
            let of_port = |entry: &&GidEntry| entry.port_num == u32::from(number);
            ports.push(Port {
                number,
                attr: ctx.query_port(number)?,
                gids: table.iter().filter(of_port).copied().collect(),
            });
        }
        let board_id = format!("/sys/class/infiniband/{}/board_id", device.name());
        Ok(Self {
            name: device.name().to_owned(),
            transport: device.transport_type(),
            node_guid: device.guid(),
            board_id: fs::read_to_string(board_id)
                .ok()
                .map(|id| id.trim().to_owned()),
            attr,
            num_comp_vectors: ctx.num_comp_vectors(),
            ports,
        })
    }
}
