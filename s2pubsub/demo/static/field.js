// The question's field: Enter sends, Shift and Enter begin a new line.

export function sendOnEnter(form, field) {
  field.addEventListener("keydown", (event) => {
    // isComposing: Enter that ends the input of a character, as for Japanese, is not meant for us.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
}
