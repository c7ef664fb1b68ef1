/** Where the buttons of an operator are: that this account has none of them, and which right they need. */
import { t } from '../strings'

export const ViewOnly = () => <span class="tag" title={t.rights.lookText}>{t.rights.look}<span class="visually-hidden">. {t.rights.lookText}</span></span>
