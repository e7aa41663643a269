//! The page of the management interface: every operation, parameter and field, made of the OpenAPI document.

#[test]
fn every_operation_parameter_and_field_of_the_interface_is_on_its_page_and_nothing_else() {
    let page = "# The management interface\n\nEvery operation, parameter and field. How to reach it, with examples: [Manage a running daemon](manage.md#http). The same as \
        a manual page: `lunway man lunway-api`. Written\nby `LUNWAY_WRITE_DOCS=1 cargo test -p lunway-console --test suite`.\n"
        .to_owned()
        + &lunway_reference::markdown(&lunway_reference::interface(&lunway_console::openapi()));
    lunway_foreign::written::says("docs/src/api.md", &page, "-p lunway-console --test suite");
}
