//! The status of a completion, for people. Pure.

use libibverbs_sys::bindings::*;

/// What a completion's status means for the peer, where it was met, and what to do.
pub fn cause(status: ibv_wc_status, down: bool, name: &str) -> String {
    let own = if down { ", which is down" } else { "" };
    let (meaning, remedy) = match status {
        IBV_WC_RETRY_EXC_ERR => (
            "it does not answer by RDMA",
            "its host, its port or its process is gone, or packets are lost on the way; ND_IB_TIMEOUT and ND_IB_RETRY_CNT \
             say how long is tried",
        ),
        IBV_WC_RNR_RETRY_EXC_ERR => (
            "it takes no more messages by RDMA",
            "its process stands still, or its device is short of memory; ND_TRANSPORT=tcp does without",
        ),
        IBV_WC_REM_ACCESS_ERR => (
            "it refused a write by RDMA",
            "it has taken back the memory, as a rank does that gives up: see what that rank says",
        ),
        IBV_WC_REM_OP_ERR | IBV_WC_REM_INV_REQ_ERR => (
            "its RDMA device refused a request",
            "the kernel's log of its host may say why; ND_TRANSPORT=tcp does without",
        ),
        IBV_WC_WR_FLUSH_ERR => ("their queue pair has failed", "what that rank says may be the reason"),
        IBV_WC_LOC_PROT_ERR => (
            "this rank's RDMA device may not read the memory that was to be sent",
            "it must stay mapped while a call uses it",
        ),
        _ => ("RDMA failed", "the kernel's log of either host may say why; ND_TRANSPORT=tcp does without"),
    };
    format!("{meaning} (status {status}, {}, on port {name}{own}); {remedy}", words(status))
}

/// A status in the words of the InfiniBand Architecture Specification, volume 1, section 11.6.2.
fn words(status: ibv_wc_status) -> &'static str {
    match status {
        IBV_WC_LOC_LEN_ERR => "local length error",
        IBV_WC_LOC_QP_OP_ERR => "local queue pair operation error",
        IBV_WC_LOC_PROT_ERR => "local protection error",
        IBV_WC_WR_FLUSH_ERR => "work request flushed",
        IBV_WC_MW_BIND_ERR => "memory window bind error",
        IBV_WC_BAD_RESP_ERR => "bad response",
        IBV_WC_LOC_ACCESS_ERR => "local access error",
        IBV_WC_REM_INV_REQ_ERR => "remote invalid request",
        IBV_WC_REM_ACCESS_ERR => "remote access error",
        IBV_WC_REM_OP_ERR => "remote operation error",
        IBV_WC_RETRY_EXC_ERR => "transport retry counter exceeded",
        IBV_WC_RNR_RETRY_EXC_ERR => "RNR retry counter exceeded",
        IBV_WC_REM_ABORT_ERR => "remote aborted",
        IBV_WC_FATAL_ERR => "fatal error",
        IBV_WC_RESP_TIMEOUT_ERR => "response timeout",
        IBV_WC_GENERAL_ERR => "general error",
        _ => "an error that has no name here",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_told_in_words_with_its_port_and_what_to_do() {
        let lost = cause(IBV_WC_RETRY_EXC_ERR, true, "mlx5_0:1 to mlx5_1:1");
        for word in
            ["status 12", "transport retry", "mlx5_0:1 to mlx5_1:1, which is down", "; ", "ND_IB_TIMEOUT"]
        {
            assert!(lost.contains(word), "{word}: {lost}");
        }
        for status in IBV_WC_LOC_LEN_ERR..=IBV_WC_TM_RNDV_INCOMPLETE {
            let said = cause(status, false, "p");
            assert!(said.contains(&format!("(status {status}, ")) && said.contains("on port p); "), "{said}");
        }
    }
}
