use std::mem::{offset_of, size_of};

use super::*;
use crate::bindings::*;

#[test]
fn a_machine_without_the_library_is_told_so() {
    let refused = open(Path::new("libibverbs-not-here.so.1")).err();
    let Some(Missing::Library { name, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!(name, "libibverbs-not-here.so.1");
    let said = refused.map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("cannot be opened") && said.contains("rdma-core"), "{said}");
}

#[test]
fn a_library_that_lacks_a_function_is_refused_by_its_name() {
    // Some library that is no libibverbs.
    let refused = open(Path::new("libc.so.6")).err();
    assert_eq!(
        refused,
        Some(Missing::Function { name: "libc.so.6".into(), function: "ibv_get_device_list" })
    );
}

#[test]
fn the_answer_stays_the_same() {
    assert_eq!(library().err(), library().err());
    if let Ok(library) = library() {
        assert_eq!(lacking(library), None);
    }
}

/// As a C compiler lays them out, with the header that the bindings were made of.
#[cfg(target_arch = "x86_64")]
#[test]
fn structures_are_laid_out_as_in_c() {
    let sizes = [
        (size_of::<ibv_device_attr>(), 232),
        (size_of::<ibv_port_attr>(), 52),
        (size_of::<ibv_context>(), 328),
        (size_of::<ibv_qp_attr>(), 144),
        (size_of::<ibv_qp_init_attr>(), 64),
        (size_of::<ibv_send_wr>(), 128),
        (size_of::<ibv_recv_wr>(), 32),
        (size_of::<ibv_wc>(), 48),
        (size_of::<ibv_gid_entry>(), 32),
        (offset_of!(ibv_context, ops), 8),
        (offset_of!(ibv_context_ops, poll_cq), 88),
        (offset_of!(ibv_context_ops, post_send), 200),
        (offset_of!(ibv_qp, qp_num), 52),
        (offset_of!(ibv_wc, qp_num), 28),
    ];
    for (i, (rust, c)) in sizes.into_iter().enumerate() {
        assert_eq!(rust, c, "entry {i}");
    }
}
