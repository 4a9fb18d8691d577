//! Hints for requests that have failed.

use crate::cq::WcStatus;

/// The hint for a request that has ended with this status, if there is one.
pub(crate) fn of_status(status: WcStatus) -> Option<&'static str> {
    Some(match status {
        WcStatus::LOC_LEN_ERR | WcStatus::REM_INV_REQ_ERR => {
            "post larger receives, or send shorter messages; if the lengths fit, the peer's queue pair was not made \
             for the operation"
        }
        WcStatus::REM_OP_ERR => {
            "the peer's completions say why; Soft-RoCE reports this, too, if the message is longer than the receive: then \
             post larger receives"
        }
        WcStatus::LOC_QP_OP_ERR => {
            "for a receive on Soft-RoCE: the message is longer than the receive, so post larger receives; for a send: the \
             device cannot carry out the operation, or not with these buffers"
        }
        WcStatus::LOC_PROT_ERR => {
            "register the buffer in the protection domain of the queue pair that it is posted to"
        }
        WcStatus::REM_ACCESS_ERR => {
            "check first the RKey: it has to be of a region that is still registered, in the protection domain of the \
             peer's queue pair; then that address and length are inside the region; then that the peer has registered \
             it with RemoteAccess::READ for reads, WRITE for writes, or ATOMIC for atomics"
        }
        WcStatus::LOC_ACCESS_ERR => {
            "the memory that the peer's request names was deregistered meanwhile, or does not allow it"
        }
        WcStatus::RETRY_EXC_ERR => {
            "check that the peer's program runs, that its queue pair is in the state RTR or RTS, and that the network \
             between the hosts carries packets of the MTU"
        }
        WcStatus::RNR_RETRY_EXC_ERR => {
            "the peer has to post receives before messages arrive; a retry count of 7 (RnrRetry) waits for them without \
             end"
        }
        WcStatus::WR_FLUSH_ERR => {
            "an earlier completion of the queue pair, or the event that the connection has ended, says why"
        }
        WcStatus::MW_BIND_ERR => {
            "the region of a window has to allow windows, and what the window allows"
        }
        _ => return None,
    })
}
