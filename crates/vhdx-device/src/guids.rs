//! Random GUIDs for the engine, which has no randomness of its own.

use lunway_vhdx::format::{Guid, GuidSource};

/// GUIDs from the kernel.
///
/// # Errors
///
/// Where the kernel has no random numbers: two files with one GUID could be taken for each other.
pub fn random_guids() -> Result<Box<dyn GuidSource>, getrandom::Error> {
    // A kernel that has given random numbers once does not stop. Should it, the seed and a count still make a GUID that
    // no other file has.
    let mut seed = [0; 16];
    getrandom::fill(&mut seed)?;
    let (seed, mut count) = (u128::from_le_bytes(seed), 0u128);
    Ok(Box::new(move || {
        count += 1;
        let mut bytes = seed.wrapping_add(count).to_le_bytes();
        let _ = getrandom::fill(&mut bytes);
        Guid::from_random(bytes)
    }))
}
