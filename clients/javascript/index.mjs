// One instance of the client for both kinds of modules: `instanceof DanubeError` holds whoever imported it.
export { Consumer, DanubeClient, DanubeError, Message, Producer, Schemas } from "./dist/index.js";
