//! Names of the C functions that a test can let fail.

use std::fmt;

/// Devices on which a call can fail on request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// The device of a host, and scripted devices.
    AllDevices,
    /// Scripted devices.
    Scripted,
    /// The connection manager of a host.
    Connections,
}

macro_rules! calls {
    ($($scope:ident { $($variant:ident $name:literal $(= $also:literal)*,)* })*) => {
        /// A C function of libibverbs or librdmacm, for [`Host::fail`](crate::Host::fail) and
        /// [`scripted::Device::fail`](crate::scripted::Device::fail). The [`Display`](fmt::Display) text is the function's
        /// name, as in the errors of `verbs` and `cm`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Call {
            $($(
                #[doc = concat!("`", $name, "`", $(", `", $also, "`",)* ".")]
                $variant,
            )*)*
        }

        impl Call {
            /// All calls, for tests with each of them.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// Name of the function.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)*)*
                }
            }

            const fn scope(self) -> Scope {
                match self {
                    $($(Self::$variant)|* => Scope::$scope,)*
                }
            }

            /// The call of a C function.
            ///
            /// # Panics
            /// If the function is not in the list: when compiling, in a constant.
            pub(crate) const fn of(function: &str) -> Self {
                $($(
                    if is_same(function, $name) $(|| is_same(function, $also))* {
                        return Self::$variant;
                    }
                )*)*
                panic!("the function is not in the list of calls")
            }
        }
    };
}

calls! {
    AllDevices {
        OpenDevice "ibv_open_device",
        CloseDevice "ibv_close_device",
        QueryDevice "ibv_query_device",
        QueryDeviceEx "ibv_query_device_ex",
        QueryPort "ibv_query_port" = "query_port",
        QueryGidEx "ibv_query_gid_ex" = "_ibv_query_gid_ex",
        QueryGidTable "ibv_query_gid_table" = "_ibv_query_gid_table",
        QueryRtValuesEx "ibv_query_rt_values_ex",
        AllocPd "ibv_alloc_pd",
        DeallocPd "ibv_dealloc_pd",
        RegMr "ibv_reg_mr" = "ibv_reg_mr_iova" = "ibv_reg_mr_iova2",
        DeregMr "ibv_dereg_mr",
        AllocMw "ibv_alloc_mw",
        DeallocMw "ibv_dealloc_mw",
        BindMw "ibv_bind_mw",
        CreateAh "ibv_create_ah",
        InitAhFromWc "ibv_init_ah_from_wc",
        DestroyAh "ibv_destroy_ah",
        CreateCompChannel "ibv_create_comp_channel",
        DestroyCompChannel "ibv_destroy_comp_channel",
        CreateCq "ibv_create_cq",
        CreateCqEx "ibv_create_cq_ex",
        ModifyCq "ibv_modify_cq",
        ResizeCq "ibv_resize_cq",
        DestroyCq "ibv_destroy_cq",
        ReqNotifyCq "ibv_req_notify_cq",
        PollCq "ibv_poll_cq",
        StartPoll "ibv_start_poll",
        NextPoll "ibv_next_poll",
        CreateQp "ibv_create_qp",
        CreateQpEx "ibv_create_qp_ex",
        OpenQp "ibv_open_qp",
        ModifyQp "ibv_modify_qp",
        QueryQp "ibv_query_qp",
        DestroyQp "ibv_destroy_qp",
        QpToQpEx "ibv_qp_to_qp_ex",
        AttachMcast "ibv_attach_mcast",
        DetachMcast "ibv_detach_mcast",
        PostSend "ibv_post_send",
        PostRecv "ibv_post_recv",
        WrComplete "ibv_wr_complete",
        CreateSrq "ibv_create_srq",
        CreateSrqEx "ibv_create_srq_ex",
        ModifySrq "ibv_modify_srq",
        QuerySrq "ibv_query_srq",
        GetSrqNum "ibv_get_srq_num",
        DestroySrq "ibv_destroy_srq",
        PostSrqRecv "ibv_post_srq_recv",
        Doorbell "doorbell that names no request",
        OpenXrcd "ibv_open_xrcd",
        CloseXrcd "ibv_close_xrcd",
    }
    Scripted {
        ImportDevice "ibv_import_device",
        ImportContext "import_context",
        ImportPd "ibv_import_pd",
        UnimportPd "ibv_unimport_pd",
        ImportMr "ibv_import_mr",
        UnimportMr "ibv_unimport_mr",
        ImportDm "ibv_import_dm",
        UnimportDm "ibv_unimport_dm",
        ResolveEthL2FromGid "ibv_resolve_eth_l2_from_gid",
        RegDmabufMr "ibv_reg_dmabuf_mr",
        ReregMr "ibv_rereg_mr",
        RegDmMr "ibv_reg_dm_mr",
        AllocNullMr "ibv_alloc_null_mr",
        AdviseMr "ibv_advise_mr",
        SetEce "ibv_set_ece",
        QueryEce "ibv_query_ece",
        ModifyQpRateLimit "ibv_modify_qp_rate_limit",
        AllocTd "ibv_alloc_td",
        DeallocTd "ibv_dealloc_td",
        AllocParentDomain "ibv_alloc_parent_domain",
        AllocDm "ibv_alloc_dm",
        FreeDm "ibv_free_dm",
        MemcpyToDm "ibv_memcpy_to_dm",
        MemcpyFromDm "ibv_memcpy_from_dm",
        CreateCounters "ibv_create_counters",
        DestroyCounters "ibv_destroy_counters",
        AttachCountersPointFlow "ibv_attach_counters_point_flow",
        ReadCounters "ibv_read_counters",
        CreateFlow "ibv_create_flow",
        DestroyFlow "ibv_destroy_flow",
        CreateWq "ibv_create_wq",
        ModifyWq "ibv_modify_wq",
        DestroyWq "ibv_destroy_wq",
        PostWqRecv "ibv_post_wq_recv",
        CreateRwqIndTable "ibv_create_rwq_ind_table",
        DestroyRwqIndTable "ibv_destroy_rwq_ind_table",
        PostSrqOps "ibv_post_srq_ops",
        QueryCompCntrCaps "ibv_query_comp_cntr_caps" = "_ibv_query_comp_cntr_caps",
        CreateCompCntr "ibv_create_comp_cntr",
        DestroyCompCntr "ibv_destroy_comp_cntr",
        SetCompCntr "ibv_set_comp_cntr",
        SetErrCompCntr "ibv_set_err_comp_cntr",
        IncCompCntr "ibv_inc_comp_cntr",
        IncErrCompCntr "ibv_inc_err_comp_cntr",
        ReadCompCntr "ibv_read_comp_cntr",
        ReadErrCompCntr "ibv_read_err_comp_cntr",
        QpAttachCompCntr "ibv_qp_attach_comp_cntr",
        SilentDoorbell "doorbell without `bad_wr`",
    }
    Connections {
        CreateEventChannel "rdma_create_event_channel",
        GetCmEvent "rdma_get_cm_event",
        CreateId "rdma_create_id",
        DestroyId "rdma_destroy_id",
        CreateEp "rdma_create_ep",
        MigrateId "rdma_migrate_id",
        GetDevices "rdma_get_devices",
        BindAddr "rdma_bind_addr",
        ResolveAddr "rdma_resolve_addr",
        ResolveRoute "rdma_resolve_route",
        Listen "rdma_listen",
        InitQpAttr "rdma_init_qp_attr",
        Connect "rdma_connect",
        Accept "rdma_accept",
        Reject "rdma_reject",
        RejectEce "rdma_reject_ece",
        Establish "rdma_establish",
        Disconnect "rdma_disconnect",
        Notify "rdma_notify",
        SetOption "rdma_set_option",
        SetLocalEce "rdma_set_local_ece",
        GetRemoteEce "rdma_get_remote_ece",
        JoinMulticastEx "rdma_join_multicast_ex",
        LeaveMulticast "rdma_leave_multicast",
    }
}

impl Call {
    /// Whether [`Host::fail`](crate::Host::fail) takes the call: the host's own device or its connection manager has the
    /// function.
    pub const fn is_of_host(self) -> bool {
        !matches!(self.scope(), Scope::Scripted)
    }

    /// Whether the call creates or resizes an object.
    pub(crate) const fn creates(self) -> bool {
        matches!(
            self,
            Self::AllocPd
                | Self::RegMr
                | Self::AllocMw
                | Self::CreateAh
                | Self::CreateCompChannel
                | Self::CreateCq
                | Self::CreateCqEx
                | Self::ResizeCq
                | Self::CreateQp
                | Self::CreateQpEx
                | Self::OpenQp
                | Self::CreateSrq
                | Self::CreateSrqEx
                | Self::OpenXrcd
                | Self::CreateEventChannel
                | Self::CreateId
        )
    }

    /// Whether the call destroys an object.
    pub(crate) const fn destroys(self) -> bool {
        matches!(
            self,
            Self::DeallocPd
                | Self::DeregMr
                | Self::DeallocMw
                | Self::DestroyAh
                | Self::DestroyCompChannel
                | Self::DestroyCq
                | Self::DestroyQp
                | Self::DestroySrq
                | Self::CloseXrcd
        )
    }

    /// Whether [`scripted::Device::fail`](crate::scripted::Device::fail) takes the call: scripted devices have the
    /// function.
    pub const fn is_of_scripted(self) -> bool {
        !matches!(self.scope(), Scope::Connections)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether two texts are equal, for constants.
const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_of_a_function_has_its_name() {
        const REGISTER: Call = Call::of("ibv_reg_mr_iova2");
        assert_eq!(REGISTER, Call::RegMr);
        assert_eq!(REGISTER.to_string(), "ibv_reg_mr");
        assert_eq!(Call::of("rdma_listen"), Call::Listen);
    }

    #[test]
    #[should_panic(expected = "not in the list of calls")]
    fn function_outside_of_the_list_is_refused() {
        Call::of("ibv_reg");
    }
}
