//! Flow steering and flow actions.

use super::dispatch;
use crate::{
    ibv_context, ibv_flow, ibv_flow_action, ibv_flow_action_esp_attr, ibv_flow_attr, ibv_qp,
};
use core::ffi::c_int;

dispatch! {
    /// `ibv_create_flow(qp, flow)`—Steers packets matching `flow` to a queue pair.
    pub fn ibv_create_flow(qp: *mut ibv_qp, flow: *mut ibv_flow_attr) -> *mut ibv_flow
        => verbs_get_ctx_op!((*qp).context, ibv_create_flow);

    /// `ibv_destroy_flow(flow_id)`—Removes a flow.
    pub fn ibv_destroy_flow(flow_id: *mut ibv_flow) -> c_int
        => verbs_get_ctx_op!((*flow_id).context, ibv_destroy_flow);

    /// `ibv_create_flow_action_esp(ctx, esp)`—Creates an ESP encryption or decryption action.
    pub fn ibv_create_flow_action_esp(
        ctx: *mut ibv_context,
        esp: *mut ibv_flow_action_esp_attr,
    ) -> *mut ibv_flow_action
        => verbs_get_ctx_op!(ctx, create_flow_action_esp);

    /// `ibv_modify_flow_action_esp(action, esp)`—Modifies an ESP action.
    pub fn ibv_modify_flow_action_esp(
        action: *mut ibv_flow_action,
        esp: *mut ibv_flow_action_esp_attr,
    ) -> c_int
        => verbs_get_ctx_op!((*action).context, modify_flow_action_esp);

    /// `ibv_destroy_flow_action(action)`—Destroys a flow action.
    pub fn ibv_destroy_flow_action(action: *mut ibv_flow_action) -> c_int
        => verbs_get_ctx_op!((*action).context, destroy_flow_action);
}
