/** Input, a document or a parameter that hubbub will not work with, in one sentence that says what to do. */
export class Refused extends Error {
  override name = "Refused";
}
