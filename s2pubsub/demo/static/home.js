import { sendOnEnter } from "./field.js";

const form = document.querySelector("form.ask");
const field = form.querySelector("textarea");

sendOnEnter(form, field);
for (const button of document.querySelectorAll("[data-question]")) {
  button.addEventListener("click", () => {
    field.value = button.dataset.question;
    form.requestSubmit();
  });
}
