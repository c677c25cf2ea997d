#![no_main]

use libfuzzer_sys::fuzz_target;
use nd_comm::rendezvous::{Address, UniqueId};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(id) = UniqueId::from_bytes(bytes) {
        let text = id.to_secret_string();
        let (places, secret) = text.rsplit_once(':').expect("a secret");
        // A host may bear any name.
        assert!(places.contains(secret) || !format!("{id} {id:?}").contains(secret));
        if text.len() <= nd_comm::rendezvous::ID_MAX {
            assert_eq!(text.parse::<UniqueId>().expect("our own text").to_secret_string(), text);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(address) = text.parse::<Address>()
    {
        assert_eq!(address.to_string().parse::<Address>().as_ref(), Ok(&address));
    }
});
