//! Whether the page of all configuration keys says what the configuration takes.

use lunway_target::Config;

#[test]
fn every_configuration_key_is_in_the_page_of_all_keys() {
    let root = serde_json::to_value(schemars::schema_for!(Config)).unwrap();
    let page = "# All configuration keys\n\nThe keys of the file that `lunway serve -c` reads; [examples](configuration.md). The same as a manual page: \
        `lunway man lunway.toml`. Written by\n`LUNWAY_WRITE_DOCS=1 cargo test -p lunway-target --test keys` from the types that the file is read into.\n"
        .to_owned()
        + &lunway_reference::markdown(&lunway_reference::keys(&root, &root["$defs"]));
    lunway_foreign::written::says("docs/src/keys.md", &page, "-p lunway-target --test keys");
}
