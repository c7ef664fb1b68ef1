/** The first script, with the styles of all pages. It loads the page of the address and the frame of all pages at the same time. */
import './styles/tokens.css'
import './styles/base.css'
import './styles/shell.css'
import './styles/parts.css'
import './styles/dags.css'
import './styles/dag.css'
import './styles/task.css'
import './styles/home.css'
import './styles/docs.css'
import './styles/operate.css'
import './styles/grid.css'
import './styles/graph.css'
import { match, ROUTES } from './shell/routes'

const base = new URL(document.baseURI).pathname.replace(/\/$/, '')
const found = match(ROUTES, location.pathname.slice(base.length) || '/')
// The frame loads it again, and shows why it failed.
void found?.page().then((page) => page.begin?.(found.params)).catch(() => undefined)
void import('./main')
