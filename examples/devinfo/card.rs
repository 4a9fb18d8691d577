//! Everything there is to say about one device.

use std::fs;

use anyhow::{Result, bail};
use verbs::{Device, DeviceAttr, GidEntry, Guid, PortAttr, TransportType};

/// A device.
#[derive(Debug)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// The family of its transports.
    pub transport: TransportType,
    /// The identifier of its node.
    pub node_guid: Guid,
    /// The maker's name of the board, if the driver says.
    pub board_id: Option<String>,
    /// Its attributes.
    pub attr: DeviceAttr,
    /// The number of its completion vectors.
    pub num_comp_vectors: u32,
    /// Its ports, or the one that was asked for.
    pub ports: Vec<Port>,
}

/// A port of a device.
#[derive(Debug)]
pub struct Port {
    /// Its number, counting from 1.
    pub number: u8,
    /// Its attributes.
    pub attr: PortAttr,
    /// Its addresses.
    pub gids: Vec<GidEntry>,
}

impl Card {
    /// Reads what a device says, of all its ports or of one.
    ///
    /// # Errors
    /// The device cannot be opened or asked, or has no such port.
    pub fn read(device: &Device, port: Option<u8>) -> Result<Self> {
        let ctx = device.open()?;
        let attr = ctx.query_device()?;
        let count = u8::try_from(attr.phys_port_cnt()).unwrap_or(u8::MAX);
        let numbers = match port {
            Some(number) if number > count => bail!("Invalid port requested for device"),
            Some(number) => number..=number,
            None => 1..=count,
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
