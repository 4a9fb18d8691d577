//! What an engine tells of its sockets and connections.

use std::io;

use verbs::Gid;

use super::{Engine, State};
use crate::{
    ib_connection::Stage,
    info::{DeviceConnectionInfo, Info},
    proto::wire::MAX_MESSAGE,
};

impl Engine {
    /// `RDS_INFO_*`—Everything that there is to be told of the sockets and connections of this
    /// engine, at one time. The kernel's own are not in it, nor those of other processes.
    ///
    /// ```no_run
    /// let info = rds::Engine::shared()?.info()?;
    /// for connection in &info.connections {
    ///     println!("{} to {}: {:?}", connection.local, connection.peer, connection.flags);
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Unsupported`: the engine is of a parent process.
    #[doc(alias = "RDS_INFO_FIRST")]
    pub fn info(&self) -> io::Result<Info> {
        Ok(self.inner().lock()?.info())
    }
}

impl State {
    fn info(&self) -> Info {
        let mut info = self.node.info();
        let routes = self.node.connections();
        for (id, route) in routes.filter_map(|id| Some((id, self.node.route(id)?))) {
            let mut told = DeviceConnectionInfo {
                local: route.local,
                peer: route.peer,
                local_gid: [0; 16],
                peer_gid: [0; 16],
                max_send_wr: 0,
                max_recv_wr: 0,
                max_send_sge: 0,
                mr_max: 0,
                mr_size: 0,
                tos: route.tos,
                sl: route.tos & 15,
                cache_allocs: 0,
            };
            let stage = self.ib_connections.get(&id).map(|conn| &conn.stage);
            if let Some(Stage::Up(resources)) = stage {
                told.local_gid = Gid::from(route.local).0;
                told.peer_gid = Gid::from(route.peer).0;
                told.max_send_wr = resources.device.sends;
                told.max_recv_wr = resources.device.receives;
                told.max_send_sge = resources.device.elements;
                // There is no pool: as many as the device has.
                told.mr_max = u32::MAX;
                told.mr_size = MAX_MESSAGE / 4096 + 1;
            }
            info.device_connections.push(told);
        }
        info
    }
}
