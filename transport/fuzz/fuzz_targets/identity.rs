#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_transport::tcp::identity::Identity;

fuzz_target!(|bytes: &[u8]| {
    if let Some(identity) = Identity::decode(bytes) {
        assert_eq!(&identity.encode()[..], bytes);
        let _ = (identity.unlike(true), identity.unlike(false));
    }
});
