/** Where the buttons of more rights are: that this account has none of them, and which right they need. By default those of a DAG. */
import { t } from '../strings'

export const ViewOnly = ({ text = t.rights.lookText }: { text?: string }) => <span class="tag" title={text}>{t.rights.look}<span class="visually-hidden">. {text}</span></span>
